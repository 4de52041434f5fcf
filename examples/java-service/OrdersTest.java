import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Tests of the service, without a test runner: a case is a method, and a failure an exception. */
public class OrdersTest {
  /** What a test does while an order is charged. */
  interface During {
    void charged(String order, int count);
  }

  private static Control control;
  private static String servers;

  public static void main(String[] arguments) {
    control = new Control(arguments[0]);
    servers = control.get("bootstrap_servers").asText();
    chargesOnceWhileNothingFails();
    chargesAgainAfterAFence();
    chargesAgainAfterItsSessionEnded();
    losesNothingWithTheResponseToACommit();
    goesOnWhileItsCoordinatorMoves();
    goesOnWhileItsLeaderMoves();
    System.out.println("6 passed");
  }

  static void chargesOnceWhileNothingFails() {
    try (Control.Scope scope = control.scope("orders", Map.of("orders", 1))) {
      expect(List.of("a", "b", "c"), charged(scope, 3, (order, count) -> {}, "a", "b", "c"));
    }
  }

  static void chargesAgainAfterAFence() {
    try (Control.Scope scope = control.scope("orders", Map.of("orders", 1))) {
      During fences = (order, count) -> {
        if (count == 2) {
          delayHeartbeats(scope);
          scope.post(group(scope) + "/fence", Map.of("member", member(scope)));
        }
      };
      expect(List.of("a", "b", "b", "c"), charged(scope, 3, fences, "a", "b", "c"));
    }
  }

  static void chargesAgainAfterItsSessionEnded() {
    try (Control.Scope scope = control.scope("orders", Map.of("orders", 1))) {
      During expires = (order, count) -> {
        if (count == 1) {
          delayHeartbeats(scope);
          scope.post(group(scope) + "/expire", Map.of("member", member(scope)));
        }
      };
      expect(List.of("a", "a"), charged(scope, 1, expires, "a"));
    }
  }

  static void losesNothingWithTheResponseToACommit() {
    try (Control.Scope scope = control.scope("orders", Map.of("orders", 1))) {
      int fault = scope.post("add_fault", Map.of("action", "lose_response", "api", "OffsetCommit")).get("fault").asInt();
      expect(List.of("a", "b"), charged(scope, 2, (order, count) -> {}, "a", "b"));
      expect(1, scope.post("faults/" + fault + "/wait_met", Map.of()).get("met").asInt());
    }
  }

  static void goesOnWhileItsCoordinatorMoves() {
    try (Control.Scope scope = control.scope("orders", Map.of("orders", 1))) {
      During moves = (order, count) -> {
        if (count == 1) {
          control.post("move_coordinator", Map.of("group_id", scope.name("billing")));
        }
      };
      expect(List.of("a", "b"), charged(scope, 2, moves, "a", "b"));
    }
  }

  static void goesOnWhileItsLeaderMoves() {
    try (Control.Scope scope = control.scope("orders", Map.of("orders", 1))) {
      During moves = (order, count) -> {
        if (count == 1) {
          scope.post("move_leader", Map.of("topic", scope.name("orders"), "partition", 0));
        }
      };
      expect(List.of("a", "b"), charged(scope, 2, moves, "a", "b"));
    }
  }

  /** Lets the service commit before it learns from a heartbeat that it is no longer a member. */
  static void delayHeartbeats(Control.Scope scope) {
    scope.post("add_fault", Map.of("action", "delay", "api", "ConsumerGroupHeartbeat", "seconds", 1, "times", 2));
  }

  /** Runs the service until it has committed that many of these orders, and returns what it charged. */
  static List<String> charged(Control.Scope scope, int committed, During during, String... orders) {
    List<String> charges = new ArrayList<>();
    scope.post("produce", Map.of("topic", scope.name("orders"), "values", List.of(orders)));
    try (Orders service = new Orders(servers, scope.name("billing"), scope.name("orders"), order -> {
      charges.add(order);
      during.charged(order, charges.size());
    })) {
      while (offset(scope) < committed) {
        service.poll();
      }
    }
    return charges;
  }

  static String group(Control.Scope scope) {
    return "groups/" + scope.name("billing");
  }

  static String member(Control.Scope scope) {
    return scope.get(group(scope) + "/members").get(0).get("member_id").asText();
  }

  static long offset(Control.Scope scope) {
    JsonNode offsets = scope.get(group(scope) + "/offsets");
    return offsets.isEmpty() ? 0 : offsets.get(0).get("offset").asLong();
  }

  static void expect(Object expected, Object found) {
    if (!expected.equals(found)) {
      throw new AssertionError("expected " + expected + ", got " + found);
    }
  }
}
