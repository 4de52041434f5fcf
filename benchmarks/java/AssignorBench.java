import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Times Kafka's server-side assignors. Arguments: the number of topics, then pairs MEMBERS:PARTITIONS.
 * Prints one line a measurement: assignor, members, partitions, change, median milliseconds when warm.
 */
public class AssignorBench {
    private static final int WARM_UP = 200;
    private static final int MEASURED = 101;

    private final Map<Uuid, Integer> partitions = new LinkedHashMap<>();

    private AssignorBench(int topics, int total) {
        for (int topic = 1; topic <= topics; topic++) partitions.put(new Uuid(0, topic), total / topics);
    }

    private final SubscribedTopicDescriber describer = new SubscribedTopicDescriber() {
        @Override
        public int numPartitions(Uuid topic) {
            return partitions.getOrDefault(topic, -1);
        }

        @Override
        public Set<String> racksForPartition(Uuid topic, int partition) {
            return Set.of();
        }
    };

    private GroupSpecImpl spec(List<String> members, Map<String, Map<Uuid, Set<Integer>>> targets) {
        Map<String, MemberSubscriptionAndAssignmentImpl> subscriptions = new HashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        for (String member : members) {
            Map<Uuid, Set<Integer>> target = targets.getOrDefault(member, Map.of());
            subscriptions.put(member, new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(), Optional.empty(), partitions.keySet(), new Assignment(target)));
            for (Map.Entry<Uuid, Set<Integer>> entry : target.entrySet()) {
                Map<Integer, String> owned = owners.computeIfAbsent(entry.getKey(), topic -> new HashMap<>());
                for (int partition : entry.getValue()) owned.put(partition, member);
            }
        }
        return new GroupSpecImpl(subscriptions, SubscriptionType.HOMOGENEOUS, owners);
    }

    private void measure(ConsumerGroupPartitionAssignor assignor, int members, int total) {
        List<String> names = new ArrayList<>();
        for (int member = 0; member < members; member++) names.add("member-" + member);
        Map<String, Map<Uuid, Set<Integer>>> targets = new HashMap<>();
        assignor.assign(spec(names, Map.of()), describer).members()
            .forEach((member, assignment) -> targets.put(member, assignment.partitions()));
        List<String> more = new ArrayList<>(names);
        more.add("joiner");
        print(assignor, members, total, "join", spec(more, targets));
        print(assignor, members, total, "leave", spec(names.subList(1, members), targets));
    }

    private void print(
            ConsumerGroupPartitionAssignor assignor, int members, int total, String change, GroupSpecImpl spec) {
        double[] times = new double[MEASURED];
        for (int round = -WARM_UP; round < MEASURED; round++) {
            long start = System.nanoTime();
            assignor.assign(spec, describer);
            if (round >= 0) times[round] = (System.nanoTime() - start) / 1e6;
        }
        Arrays.sort(times);
        System.out.println(assignor.name() + " " + members + " " + total + " " + change + " " + times[MEASURED / 2]);
    }

    public static void main(String[] args) {
        int topics = Integer.parseInt(args[0]);
        for (String size : Arrays.asList(args).subList(1, args.length)) {
            int members = Integer.parseInt(size.split(":")[0]);
            int total = Integer.parseInt(size.split(":")[1]);
            AssignorBench bench = new AssignorBench(topics, total);
            bench.measure(new UniformAssignor(), members, total);
            bench.measure(new RangeAssignor(), members, total);
        }
    }
}
