import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.StreamsGroupDescription;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.ThreadMetadata;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.Stores;

/**
 * One instance of a Kafka Streams application, told what to do on standard input, telling what happens on standard
 * output.
 *
 * Arguments: bootstrap servers, application id, group protocol (classic or streams), topology, input topic, output
 * topic, then settings of Kafka Streams as name=value.
 *
 * The topology "copy" passes records on; "count" counts them by value: that takes a repartition topic, a store in
 * memory and its changelog.
 *
 * Lines of input: "throw RESPONSE" lets a stream thread that owns a task fail, and the handler answer RESPONSE;
 * "fail RESPONSE" does so with a java.lang.Error; "tasks" tells the tasks; "describe" tells what an admin client sees of
 * the streams group; "add" and "remove" change the number of threads; "close", or the end of input, closes.
 *
 * Lines of output: STATE NEW OLD; RECORD VALUE; UNCAUGHT CLASS RESPONSE; TASKS ACTIVE STANDBY, each a list of ids
 * between commas or "-"; THREADS COUNT; GROUP STATE members COUNT subtopologies COUNT tasks COUNT; CLOSED.
 */
public class StreamsApplication {
    private static final AtomicBoolean exception = new AtomicBoolean();
    private static final AtomicBoolean error = new AtomicBoolean();
    private static volatile StreamThreadExceptionResponse response = StreamThreadExceptionResponse.SHUTDOWN_CLIENT;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("application.id", arguments[1]);
        settings.put("group.protocol", arguments[2]);
        settings.put("default.key.serde", Serdes.StringSerde.class.getName());
        settings.put("default.value.serde", Serdes.StringSerde.class.getName());
        settings.put("auto.offset.reset", "earliest");
        settings.put("commit.interval.ms", "100");
        for (String setting : Arrays.asList(arguments).subList(6, arguments.length)) {
            settings.put(setting.split("=", 2)[0], setting.split("=", 2)[1]);
        }
        run(arguments[3], arguments[4], arguments[5], settings);
        System.exit(0);
    }

    private static void run(String topology, String input, String output, Properties settings) throws Exception {
        StreamsBuilder builder = new StreamsBuilder();
        KStream<String, String> records = builder.<String, String>stream(input).process(Faulty::new);
        if (topology.equals("count")) {
            records.groupBy((key, value) -> value)
                .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts")))
                .toStream()
                .mapValues(String::valueOf)
                .to(output);
        } else {
            records.to(output);
        }
        KafkaStreams streams = new KafkaStreams(builder.build(settings), settings);
        streams.setStateListener((now, before) -> say("STATE " + now + " " + before));
        streams.setUncaughtExceptionHandler(thrown -> {
            Throwable cause = thrown;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            say("UNCAUGHT " + cause.getClass().getName() + " " + response);
            return response;
        });
        streams.start();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null && !line.equals("close"); line = commands.readLine()) {
            obey(streams, line.split(" "), settings);
        }
        streams.close(Duration.ofSeconds(60));
        say("CLOSED");
    }

    private static void obey(KafkaStreams streams, String[] words, Properties settings) throws Exception {
        switch (words[0]) {
            case "throw", "fail" -> {
                response = StreamThreadExceptionResponse.valueOf(words[1]);
                (words[0].equals("throw") ? exception : error).set(true);
            }
            case "describe" -> describe(settings);
            case "add" -> streams.addStreamThread();
            case "remove" -> streams.removeStreamThread(Duration.ofSeconds(30));
            case "tasks" -> {
                TreeSet<String> active = new TreeSet<>();
                TreeSet<String> standby = new TreeSet<>();
                for (ThreadMetadata thread : streams.metadataForLocalThreads()) {
                    thread.activeTasks().forEach(task -> active.add(task.taskId().toString()));
                    thread.standbyTasks().forEach(task -> standby.add(task.taskId().toString()));
                }
                say("TASKS " + listed(active) + " " + listed(standby));
                say("THREADS " + streams.metadataForLocalThreads().size());
            }
            default -> say("UNKNOWN " + words[0]);
        }
    }

    private static void describe(Properties settings) throws Exception {
        String id = settings.getProperty("application.id");
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", settings.get("bootstrap.servers")))) {
            StreamsGroupDescription group =
                admin.describeStreamsGroups(List.of(id)).describedGroups().get(id).get();
            int tasks = group.members().stream()
                .flatMap(member -> member.assignment().activeTasks().stream())
                .mapToInt(some -> some.partitions().size())
                .sum();
            say("GROUP " + group.groupState() + " members " + group.members().size() + " subtopologies "
                + group.subtopologies().size() + " tasks " + tasks);
        }
    }

    private static String listed(TreeSet<String> ids) {
        return ids.isEmpty() ? "-" : ids.stream().collect(Collectors.joining(","));
    }

    private static synchronized void say(String line) {
        System.out.println(line);
    }

    /** Tells each record and passes it on; fails in its thread when it is told to. */
    private static class Faulty extends ContextualProcessor<String, String, String, String> {
        @Override
        public void init(ProcessorContext<String, String> context) {
            super.init(context);
            context.schedule(Duration.ofMillis(50), PunctuationType.WALL_CLOCK_TIME, now -> {
                if (exception.getAndSet(false)) {
                    throw new IllegalStateException("told to fail");
                }
                if (error.getAndSet(false)) {
                    throw new StackOverflowError("told to fail");
                }
            });
        }

        @Override
        public void process(Record<String, String> record) {
            say("RECORD " + record.value());
            context().forward(record);
        }
    }
}
