import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class OrdersTest {
  private static Process server;
  private static Control control;
  private static String servers;

  private final List<String> charges = new ArrayList<>();
  private final List<Orders> services = new ArrayList<>();
  private Control.Scope scope;
  private String topic;
  private String group;

  @BeforeAll
  static void startServer() throws IOException {
    String fencepost = System.getenv().getOrDefault("FENCEPOST", "fencepost");
    server = new ProcessBuilder(fencepost, "serve", "--port", "0", "--control", "0", "--quick", "--brokers", "2")
        .redirectError(ProcessBuilder.Redirect.INHERIT).start();
    BufferedReader lines = server.inputReader();
    String line = lines.readLine();
    while (line != null && !line.startsWith("fencepost ready control ")) {
      line = lines.readLine();
    }
    assertTrue(line != null, "fencepost ended before it was ready");
    control = new Control(line.substring(line.lastIndexOf(' ') + 1));
    servers = control.get("bootstrap_servers").asText();
  }

  @AfterAll
  static void stopServer() {
    server.destroy();
  }

  @BeforeEach
  void openScope() {
    scope = control.scope("orders", Map.of("orders", 3));
    topic = scope.name("orders");
    group = "groups/" + scope.name("billing");
  }

  @AfterEach
  void closeScope() {
    services.forEach(Orders::close);
    scope.close();
  }

  @Test
  void areChargedAgainAfterAFenceDuringTheCharge() {
    produce("a", "b", "c");
    service("one", () -> {
      if (charges.size() == 2) {
        lose("fence", "one");
      }
    });
    pollUntil(() -> committed() == 3);
    assertEquals(List.of("a", "b", "b", "c"), charges);
  }

  @Test
  void areChargedAgainIfTheSessionEnds() {
    produce("a");
    service("one", () -> {
      if (charges.size() == 1) {
        lose("expire", "one");
      }
    });
    pollUntil(() -> committed() == 1);
    assertEquals(List.of("a", "a"), charges);
  }

  @Test
  void areChargedOnceIfTheResponseToACommitIsLost() {
    int fault = fault(Map.of("action", "lose_response", "api", "OffsetCommit"));
    produce("a", "b");
    service("one", () -> {});
    pollUntil(() -> committed() == 2);
    assertEquals(List.of("a", "b"), charges);
    assertEquals(1, met(fault));
    assertEquals(0, scope.get("check").size());
  }

  @Test
  void areChargedAfterTheirCoordinatorMoved() {
    produce("a", "b");
    service("one", () -> {
      if (charges.size() == 1) {
        control.post("move_coordinator", Map.of("group_id", scope.name("billing")));
      }
    });
    pollUntil(() -> committed() == 2);
    assertEquals(List.of("a", "b"), charges);
  }

  @Test
  void areAllChargedDuringARollingDeployOfThreeMembers() {
    List<Orders> olds = List.of(service("1", () -> {}), service("2", () -> {}), service("3", () -> {}));
    stable(3);
    for (Orders old : olds) {
      for (int partition = 0; partition < 3; partition++) {
        scope.post("produce", Map.of("topic", topic, "values", List.of("order"), "partition", partition));
      }
      services.remove(old);
      old.close();
      service("new", () -> {});
      stable(3);
    }
    pollUntil(() -> committed() == 9);
    assertEquals(0, scope.get("check").size());
  }

  @Test
  void areStoredOnceWhileTheirLeaderMoves() throws Exception {
    try (KafkaProducer<String, String> producer = producer(Map.of())) {
      producer.send(new ProducerRecord<>(topic, 0, null, "a")).get();
      scope.post("move_leader", Map.of("topic", topic, "partition", 0));
      producer.send(new ProducerRecord<>(topic, 0, null, "b")).get();
    }
    service("one", () -> {});
    pollUntil(() -> committed() == 2);
    assertEquals(List.of("a", "b"), stored());
  }

  @Test
  void areChargedIfTheirProducerIsThrottled() throws Exception {
    int fault = fault(Map.of("action", "throttle", "api", "Produce", "seconds", 0.2));
    try (KafkaProducer<String, String> producer = producer(Map.of())) {
      producer.send(new ProducerRecord<>(topic, 0, null, "a")).get();
    }
    service("one", () -> {});
    pollUntil(() -> committed() == 1);
    assertEquals(1, met(fault));
  }

  @Test
  void areNotChargedIfTheirTransactionWasAborted() {
    try (KafkaProducer<String, String> producer = producer(Map.of("transactional.id", scope.name("shop")))) {
      producer.initTransactions();
      producer.beginTransaction();
      producer.send(new ProducerRecord<>(topic, 0, null, "a"));
      producer.flush();
      producer.abortTransaction();
      producer.beginTransaction();
      producer.send(new ProducerRecord<>(topic, 0, null, "b"));
      producer.commitTransaction();
    }
    service("one", () -> {});
    pollUntil(() -> charges.contains("b"));
    assertEquals(List.of("b"), charges);
    assertEquals(List.of("a", "b"), stored());
  }

  @Test
  void stayWithTheirMembersWhileAStaticMemberIsReplaced() {
    Orders old = service("old", () -> {}, "group.instance.id", "one");
    service("other", () -> {}, "group.instance.id", "two");
    Map<String, String> before = assigned(stable(2));
    services.remove(old);
    old.close();
    service("new", () -> {}, "group.instance.id", "one");
    pollUntil(() -> clients(scope.get(group + "/members")).contains(scope.name("new")));
    assertEquals(before, assigned(stable(2)));
  }

  @Test
  void areAllChargedWhileAClassicGroupIsMigrated() {
    Orders classic = service("old", () -> {}, "group.protocol", "classic", "heartbeat.interval.ms", "100");
    stable(1);
    produce("a", "b");
    pollUntil(() -> committed() == 2);
    service("new", () -> {});
    stable(2);
    services.remove(classic);
    classic.close();
    assertEquals("consumer", stable(1).get(0).get("protocol").asText());
    produce("c", "d");
    pollUntil(() -> committed() == 4);
    assertEquals(List.of("a", "b", "c", "d"), charges);
  }

  /** Starts a service of this test's group. {@code during} runs within each charge; settings are names and values. */
  private Orders service(String name, Runnable during, String... settings) {
    Map<String, String> more = new HashMap<>(Map.of("bootstrap.servers", servers, "group.id", scope.name("billing")));
    more.put("client.id", scope.name(name));
    for (int i = 0; i < settings.length; i += 2) {
      more.put(settings[i], settings[i + 1]);
    }
    Orders service = new Orders(more, topic, order -> {
      charges.add(order);
      during.run();
    });
    services.add(service);
    return service;
  }

  private static KafkaProducer<String, String> producer(Map<String, String> more) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", servers);
    settings.putAll(more);
    return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
  }

  /** Lets the services work until something is so. */
  private void pollUntil(BooleanSupplier isSo) {
    while (!isSo.getAsBoolean()) {
      services.forEach(Orders::poll);
    }
  }

  /** Lets the services work until their group is stable with so many members, and returns these. */
  private JsonNode stable(int members) {
    Map<String, Integer> wanted = Map.of("members", members);
    CompletableFuture<JsonNode> found =
        CompletableFuture.supplyAsync(() -> scope.post(group + "/wait_stable", wanted));
    pollUntil(found::isDone);
    return found.join();
  }

  /** Lets a member be lost to its group, and commit before it learns of that from a heartbeat. */
  private void lose(String how, String name) {
    fault(Map.of("action", "delay", "api", "ConsumerGroupHeartbeat", "seconds", 0.3, "times", 2));
    scope.post(group + "/" + how, Map.of("member", scope.name(name)));
  }

  private int fault(Map<String, Object> fault) {
    return scope.post("add_fault", fault).get("fault").asInt();
  }

  private int met(int fault) {
    return scope.post("faults/" + fault + "/wait_met", Map.of()).get("met").asInt();
  }

  private void produce(String... orders) {
    scope.post("produce", Map.of("topic", topic, "values", List.of(orders), "partition", 0));
  }

  private List<String> stored() {
    return each(scope.get("records?topic=" + topic)).map(record -> record.get("value").asText()).toList();
  }

  /** Returns the sum of the offsets that the group has committed. */
  private long committed() {
    return each(scope.get(group + "/offsets")).mapToLong(found -> found.get("offset").asLong()).sum();
  }

  private static List<String> clients(JsonNode members) {
    return each(members).map(member -> member.get("client_id").asText()).toList();
  }

  /** Returns the epoch and the partitions of members by instance id. */
  private static Map<String, String> assigned(JsonNode members) {
    return each(members).collect(Collectors.toMap(
        member -> member.get("instance_id").asText(), member -> member.get("epoch") + " " + member.get("assignment")));
  }

  private static Stream<JsonNode> each(JsonNode list) {
    return StreamSupport.stream(list.spliterator(), false);
  }
}
