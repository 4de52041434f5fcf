import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.coordinator.group.streams.assignor.AssignmentMemberSpec;
import org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl;
import org.apache.kafka.coordinator.group.streams.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;
import org.apache.kafka.coordinator.group.streams.assignor.TopologyDescriber;

/**
 * Kafka's own task assignor: random sequences of group changes, and its target after each, a JSON object a line.
 *
 * Arguments: the first seed, and the number of sequences.
 */
public class TaskAssignorJudge {
    record Topology(TreeMap<String, Integer> tasks, Set<String> stateful) implements TopologyDescriber {
        public List<String> subtopologies() {
            return List.copyOf(tasks.keySet());
        }

        public int maxNumInputPartitions(String subtopology) {
            return tasks.get(subtopology);
        }

        public boolean isStateful(String subtopology) {
            return stateful.contains(subtopology);
        }
    }

    public static void main(String[] arguments) {
        long first = Long.parseLong(arguments[0]);
        for (long seed = first; seed < first + Long.parseLong(arguments[1]); seed++) {
            System.out.println("{\"seed\":" + seed + ",\"steps\":[" + String.join(",", sequence(seed)) + "]}");
        }
    }

    private static List<String> sequence(long seed) {
        Random random = new Random(seed);
        Topology topology = new Topology(new TreeMap<>(), new TreeSet<>());
        for (int number = 0; number <= random.nextInt(3); number++) {
            topology.tasks.put(String.valueOf(number), 1 + random.nextInt(8));
            if (random.nextBoolean()) {
                topology.stateful.add(String.valueOf(number));
            }
        }
        int standbys = random.nextInt(3);
        Map<String, String> processes = new HashMap<>();
        Map<String, MemberAssignment> targets = new HashMap<>();
        List<String> steps = new ArrayList<>();
        for (int step = 0; step < 8; step++) {
            change(random, processes, topology);
            targets.keySet().retainAll(processes.keySet());
            // In the order in which a reader puts them into a table of its own.
            Map<String, AssignmentMemberSpec> members = new HashMap<>();
            for (String member : new TreeSet<>(processes.keySet())) {
                MemberAssignment before = targets.getOrDefault(member, MemberAssignment.empty());
                members.put(member, new AssignmentMemberSpec(Optional.empty(), Optional.empty(),
                    before.activeTasks(), before.standbyTasks(), before.warmupTasks(), processes.get(member),
                    Map.of(), Map.of(), Map.of()));
            }
            Map<String, MemberAssignment> now = new StickyTaskAssignor().assign(
                new GroupSpecImpl(members, Map.of("num.standby.replicas", String.valueOf(standbys))),
                topology).members();
            steps.add("{\"tasks\":" + json(topology.tasks) + ",\"stateful\":" + strings(topology.stateful)
                + ",\"standbys\":" + standbys + ",\"members\":" + json(new TreeMap<>(quoted(processes)))
                + ",\"current\":" + assignments(targets) + ",\"target\":" + assignments(now) + "}");
            targets = new HashMap<>(now);
        }
        return steps;
    }

    private static void change(Random random, Map<String, String> processes, Topology topology) {
        int kind = random.nextInt(10);
        if (processes.isEmpty() || kind < 5) {
            // Ids that look like those of real members: they spread over the buckets of a table.
            String member = Long.toString(random.nextLong() & Long.MAX_VALUE, 36);
            processes.put(member, "process-" + random.nextInt(4));
        } else if (kind < 8 && processes.size() > 1) {
            List<String> members = new ArrayList<>(new TreeSet<>(processes.keySet()));
            processes.remove(members.get(random.nextInt(members.size())));
        } else {
            List<String> names = new ArrayList<>(topology.tasks.keySet());
            topology.tasks.merge(names.get(random.nextInt(names.size())), 1 + random.nextInt(3), Integer::sum);
        }
    }

    private static Map<String, String> quoted(Map<String, String> values) {
        return values.entrySet().stream()
            .collect(Collectors.toMap(Map.Entry::getKey, entry -> "\"" + entry.getValue() + "\""));
    }

    private static String assignments(Map<String, MemberAssignment> assignments) {
        TreeMap<String, String> found = new TreeMap<>();
        assignments.forEach((member, one) ->
            found.put(member, "[" + tasks(one.activeTasks()) + "," + tasks(one.standbyTasks()) + "]"));
        return json(found);
    }

    private static String tasks(Map<String, Set<Integer>> tasks) {
        TreeMap<String, Set<Integer>> found = new TreeMap<>();
        tasks.forEach((subtopology, partitions) -> found.put(subtopology, new TreeSet<>(partitions)));
        return json(found);
    }

    private static String json(Map<String, ?> values) {
        return values.entrySet().stream()
            .map(entry -> "\"" + entry.getKey() + "\":" + entry.getValue())
            .collect(Collectors.joining(",", "{", "}"));
    }

    private static String strings(Set<String> values) {
        return values.stream().map(value -> "\"" + value + "\"").collect(Collectors.joining(",", "[", "]"));
    }
}
