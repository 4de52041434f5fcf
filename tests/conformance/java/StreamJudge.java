import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.EnvironmentBuilder;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import com.rabbitmq.stream.ProducerBuilder;
import com.rabbitmq.stream.compression.Compression;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;

/**
 * RabbitMQ's own client of streams at a node. Arguments: host, port, the name of a stream and of a super stream, both
 * new; or without the second one, to publish messages 0 to 49 to a stream, ten in each kind of batch. Tells each step
 * that went well, then CLOSED; or FAILED with the step.
 */
public class StreamJudge {
    private static final long LIMIT_NS = 50_000_000_000L;

    public static void main(String[] arguments) {
        try {
            EnvironmentBuilder there = Environment.builder().host(arguments[0]).port(Integer.parseInt(arguments[1]));
            try (Environment environment = there.build()) {
                if (arguments.length > 3) {
                    stream(environment, arguments[2]);
                    superStream(environment, there, arguments[3]);
                } else {
                    batches(environment, arguments[2], 10);
                }
            }
            System.out.println("CLOSED");
            System.exit(0);
        } catch (Exception failure) {
            System.out.println("FAILED " + failure);
            System.exit(1);
        }
    }

    private static void stream(Environment environment, String stream) throws Exception {
        environment.streamCreator().stream(stream).create();
        try (Producer producer = environment.producerBuilder().stream(stream).name("judge").build()) {
            publish(producer, 0, 1000);
            publish(producer, 500, 1100);
            check(producer.getLastPublishingId() == 1099, "the last publishing id is known");
        }
        Consumer tracker = environment.consumerBuilder().stream(stream).offset(OffsetSpecification.first())
            .name("tracker").manualTrackingStrategy().builder().messageHandler((context, message) -> {}).build();
        tracker.store(42);
        until(() -> tracker.storedOffset() == 42, "the offset is stored");
        tracker.close();
        check(read(environment, stream, OffsetSpecification.first(), 1100) == 0, "duplicates are kept once");
        check(read(environment, stream, OffsetSpecification.offset(1090), 10) == 1090, "an offset is found");
        batches(environment, stream, 100);
        long first = read(environment, stream, OffsetSpecification.offset(1100), 500);
        check(first == 1101, "batches are unpacked, behind the offset that the stored one has in the log: " + first);
        check(environment.queryStreamStats(stream).firstOffset() == 0, "there are numbers of the stream");
        environment.deleteStream(stream);
        check(!environment.streamExists(stream), "the stream is gone");
    }

    /** So many messages in batches of each compression, and of none. */
    private static void batches(Environment environment, String stream, int count) throws Exception {
        int first = 0;
        for (Compression compression : Compression.values()) {
            ProducerBuilder builder = environment.producerBuilder().stream(stream).subEntrySize(5);
            try (Producer producer = builder.compression(compression).build()) {
                publish(producer, first, first + count);
            }
            first += count;
        }
    }

    private static void publish(Producer producer, int first, int end) throws Exception {
        AtomicInteger confirmed = new AtomicInteger();
        for (int id = first; id < end; id++) {
            byte[] value = Integer.toString(id).getBytes();
            producer.send(producer.messageBuilder().publishingId(id).addData(value).build(), status -> {
                if (status.isConfirmed()) {
                    confirmed.incrementAndGet();
                }
            });
        }
        until(() -> confirmed.get() == end - first, "messages " + first + " to " + end + " are confirmed");
    }

    /** Reads so many messages and no more; the offset of the first one. */
    private static long read(Environment environment, String stream, OffsetSpecification where, int count)
        throws Exception {
        List<Long> offsets = new CopyOnWriteArrayList<>();
        try (Consumer consumer = environment.consumerBuilder().stream(stream).offset(where)
            .messageHandler((context, message) -> offsets.add(context.offset())).build()) {
            until(() -> offsets.size() >= count, count + " messages are read");
        }
        check(offsets.size() == count, "no message is read twice");
        return offsets.get(0);
    }

    private static void superStream(Environment environment, EnvironmentBuilder there, String name) throws Exception {
        environment.streamCreator().name(name).superStream().partitions(3).creator().create();
        Map<String, String> active = new ConcurrentHashMap<>();
        AtomicInteger count = new AtomicInteger();
        List<Environment> members = new ArrayList<>();
        String[] spread = {"AAA", "ABA", "ABC", "BCB"};
        for (String member : List.of("A", "B", "C")) {
            Environment own = there.id(member).build();
            members.add(own);
            own.consumerBuilder().superStream(name).name("crew").singleActiveConsumer()
                .offset(OffsetSpecification.first())
                .consumerUpdateListener(context -> {
                    if (context.isActive()) {
                        active.put(context.stream(), member);
                        return OffsetSpecification.first();
                    }
                    active.remove(context.stream(), member);
                    return OffsetSpecification.none();
                })
                .messageHandler((context, message) -> count.incrementAndGet()).build();
            until(() -> who(active, name).equals(spread[members.size() - 1]), "shared by " + members.size());
        }
        try (Producer producer = environment.producerBuilder().superStream(name)
            .routing(message -> message.getProperties().getMessageIdAsString()).producerBuilder().build()) {
            for (int number = 0; number < 30; number++) {
                producer.send(producer.messageBuilder().properties().messageId("key " + number).messageBuilder()
                    .addData("x".getBytes()).build(), status -> {});
            }
            until(() -> count.get() == 30, "the super stream is read");
        }
        members.get(0).close();
        until(() -> who(active, name).equals(spread[3]), "shared by those that are left");
        members.get(1).close();
        members.get(2).close();
        environment.deleteSuperStream(name);
    }

    private static String who(Map<String, String> active, String name) {
        StringBuilder found = new StringBuilder();
        for (int partition = 0; partition < 3; partition++) {
            found.append(active.getOrDefault(name + "-" + partition, "-"));
        }
        return found.toString();
    }

    private static void until(BooleanSupplier condition, String what) throws Exception {
        long end = System.nanoTime() + LIMIT_NS;
        boolean met = condition.getAsBoolean();
        while (!met && System.nanoTime() < end) {
            Thread.sleep(10);
            met = condition.getAsBoolean();
        }
        check(met, what);
    }

    private static void check(boolean met, String what) {
        if (!met) {
            throw new IllegalStateException(what);
        }
        System.out.println(what);
    }
}
