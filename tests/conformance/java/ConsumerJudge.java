import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.consumer.internals.AutoOffsetResetStrategy;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The Java producer, admin client, and consumer of either group protocol, by the first argument. The consumer
 * tells its assignment and its records on standard output, commits what it told, and closes when standard input
 * ends; a topic that starts with ^ is a pattern. With "start" it reads nothing, and tells where it would start by an
 * auto.offset.reset, partition by partition; "read-resets" tells what such settings mean. The admin client deletes
 * the group when standard input ends: a member that it removed comes back until it is closed.
 */
public class ConsumerJudge {
    public static void main(String[] arguments) throws Exception {
        String servers = arguments[1];
        if (arguments[0].equals("produce")) {
            produce(servers, arguments[2], Integer.parseInt(arguments[3]));
        } else if (arguments[0].equals("administer")) {
            administer(servers, arguments[2]);
        } else if (arguments[0].equals("start")) {
            start(servers, arguments[2], arguments[3], arguments[4]);
        } else if (arguments[0].equals("read-resets")) {
            readResets(List.of(arguments).subList(2, arguments.length));
        } else {
            boolean classic = arguments[0].equals("consume-classic");
            consume(classic, servers, arguments[2], arguments[3], arguments.length > 4 ? arguments[4] : null,
                arguments.length > 5 ? arguments[5] : "");
        }
    }

    private static void produce(String servers, String topic, int count) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("enable.idempotence", "true");
        settings.put("compression.type", "lz4");
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, text, text)) {
            for (int number = 0; number < count; number++) {
                producer.send(new ProducerRecord<>(topic, "key " + number, "value " + number));
            }
            producer.flush();
        }
        System.out.println("PRODUCED " + count);
    }

    private static void administer(String servers, String group) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        try (Admin admin = Admin.create(settings)) {
            for (GroupListing listing : admin.listGroups().all().get()) {
                System.out.println("GROUP " + listing.groupId() + " " + listing.type().get() + " "
                    + listing.protocol() + " " + listing.groupState().get());
            }
            ConsumerGroupDescription described =
                admin.describeConsumerGroups(List.of(group)).describedGroups().get(group).get();
            System.out.println("DESCRIBED " + described.groupState() + " " + described.type() + " "
                + described.partitionAssignor() + " epochs " + described.groupEpoch().get() + " "
                + described.targetAssignmentEpoch().get());
            for (MemberDescription member : described.members()) {
                System.out.println("MEMBER " + member.host() + " " + member.memberEpoch().get() + " "
                    + member.assignment().topicPartitions().size() + " "
                    + member.targetAssignment().get().topicPartitions().size());
            }
            TopicPartition first = new TopicPartition("orders", 0);
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
                .forEach((partition, offset) -> System.out.println("OFFSET " + partition + " " + offset.offset()));
            System.out.println("LATEST " + admin.listOffsets(Map.of(first, OffsetSpec.latest())).all().get()
                .get(first).offset());
            System.out.println("TOPIC " + admin.describeTopics(List.of("orders")).allTopicNames().get()
                .get("orders").partitions().size());
            try {
                admin.describeConsumerGroups(List.of("missing")).all().get();
            } catch (ExecutionException error) {
                System.out.println("MISSING " + error.getCause().getClass().getSimpleName());
            }
            try {
                admin.deleteConsumerGroups(List.of(group)).all().get();
            } catch (ExecutionException error) {
                System.out.println("DELETED " + error.getCause().getClass().getSimpleName());
            }
            admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions()).all().get();
            System.out.println("REMOVED");
            while (System.in.read() != -1) {
                continue;
            }
            admin.deleteConsumerGroups(List.of(group)).all().get();
            System.out.println("LEFT " + admin.listGroups().all().get().size());
        }
    }

    private static void consume(
        boolean classic, String servers, String group, String topic, String instance, String rack
    ) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", group);
        settings.put("group.protocol", classic ? "classic" : "consumer");
        if (classic) {
            settings.put("session.timeout.ms", "30000");
            settings.put("heartbeat.interval.ms", "200");
        }
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        if (instance != null) {
            settings.put("group.instance.id", instance);
        }
        settings.put("client.rack", rack);
        AtomicBoolean closing = closing();
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, text, text)) {
            Listener listener = new Listener(consumer);
            if (topic.startsWith("^")) {
                consumer.subscribe(new SubscriptionPattern(topic), listener);
            } else {
                consumer.subscribe(List.of(topic), listener);
            }
            while (!closing.get()) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(50));
                for (ConsumerRecord<String, String> record : records) {
                    System.out.println("RECORD " + record.value());
                }
                if (!records.isEmpty()) {
                    consumer.commitSync();
                    System.out.println("COMMITTED");
                }
            }
        }
        System.out.println("CLOSED");
    }

    private static AtomicBoolean closing() {
        AtomicBoolean closing = new AtomicBoolean();
        Thread input = new Thread(() -> {
            try (BufferedReader lines = new BufferedReader(new InputStreamReader(System.in))) {
                while (lines.readLine() != null) {
                    continue;
                }
            } catch (Exception error) {
                error.printStackTrace();
            }
            closing.set(true);
        });
        input.setDaemon(true);
        input.start();
        return closing;
    }

    private static void start(String servers, String group, String topic, String reset) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", group);
        settings.put("group.protocol", "consumer");
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", reset);
        // After this time it asks once more for a position that it was not given.
        settings.put("request.timeout.ms", "1000");
        settings.put("fetch.max.wait.ms", "100");
        AtomicBoolean closing = closing();
        TreeSet<Integer> told = new TreeSet<>();
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, text, text)) {
            consumer.subscribe(List.of(topic), new Pausing(consumer));
            while (!closing.get()) {
                consumer.poll(Duration.ofMillis(50));
                for (TopicPartition partition : consumer.assignment()) {
                    if (told.contains(partition.partition())) {
                        continue;
                    }
                    try {
                        long offset = consumer.position(partition, Duration.ofMillis(100));
                        System.out.println("START " + partition.partition() + " " + offset);
                        told.add(partition.partition());
                    } catch (TimeoutException error) {
                        System.out.println("NOWHERE " + partition.partition());
                    }
                }
            }
        }
        System.out.println("CLOSED");
    }

    private static void readResets(List<String> resets) {
        for (String reset : resets) {
            try {
                new AutoOffsetResetStrategy.Validator().ensureValid("auto.offset.reset", reset);
            } catch (ConfigException error) {
                System.out.println("refused");
                continue;
            }
            System.out.println(AutoOffsetResetStrategy.fromString(reset).duration()
                .map(duration -> duration.getSeconds() + " " + duration.getNano()).orElse("plain"));
        }
        System.out.println("CLOSED");
    }

    /** Reads nothing: the poll that assigns partitions would go on with their records. */
    private record Pausing(KafkaConsumer<String, String> consumer) implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            consumer.pause(partitions);
        }
    }

    private record Listener(KafkaConsumer<String, String> consumer) implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            System.out.println("REVOKED " + partitions.size());
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            TreeSet<Integer> numbers = new TreeSet<>();
            consumer.assignment().forEach(partition -> numbers.add(partition.partition()));
            System.out.println("OWNS " + numbers);
        }
    }
}
