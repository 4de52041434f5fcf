import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.ConsumerBuilder;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.BackOffDelayPolicy;
import com.rabbitmq.stream.OffsetSpecification;
import io.netty.channel.Channel;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Single active consumers of RabbitMQ's own client, told what to do on standard input. Arguments: host and port.
 *
 * start ID CLIENT stream|super NAME GROUP: one that tells when it is activated and steps down; it reads all there is.
 * store ID CLIENT stream|super NAME GROUP: one that stores each offset, and goes on behind the stored one.
 * close ID; lose CLIENT breaks its connections, after which it connects anew; hold ID and release ID: it is not done
 * with stepping down in between. What it says begins with the consumer: ID started, ID closed, ID failed; ID STREAM
 * active, ID STREAM idle, and ID STREAM and a message.
 */
public class GroupMembers {
    private static final Map<String, Environment> CLIENTS = new ConcurrentHashMap<>();
    private static final Map<String, List<Channel>> CHANNELS = new ConcurrentHashMap<>();
    private static final Map<String, Consumer> CONSUMERS = new ConcurrentHashMap<>();
    private static final Map<String, CountDownLatch> HELD = new ConcurrentHashMap<>();
    private static final Duration SOON = Duration.ofMillis(50);

    public static void main(String[] there) {
        // A client that is held holds up whoever waits for it.
        ExecutorService workers = Executors.newCachedThreadPool();
        Scanner orders = new Scanner(System.in);
        while (orders.hasNextLine()) {
            String[] words = orders.nextLine().split(" ");
            switch (words[0]) {
                case "lose" -> CHANNELS.getOrDefault(words[1], List.of()).forEach(Channel::close);
                case "hold" -> HELD.put(words[1], new CountDownLatch(1));
                case "release" -> HELD.remove(words[1]).countDown();
                default -> workers.execute(() -> carryOut(there, words));
            }
        }
        System.out.println("CLOSED");
        System.exit(0);
    }

    private static void carryOut(String[] there, String[] words) {
        try {
            if (words[0].equals("close")) {
                CONSUMERS.remove(words[1]).close();
                System.out.println(words[1] + " closed");
            } else {
                Environment client = CLIENTS.computeIfAbsent(words[2], name -> client(there, name));
                CONSUMERS.put(words[1], consumer(client, words));
                System.out.println(words[1] + " started");
            }
        } catch (RuntimeException failure) {
            System.out.println(words[1] + " failed: " + failure);
        }
    }

    private static Environment client(String[] there, String name) {
        List<Channel> channels = new CopyOnWriteArrayList<>();
        CHANNELS.put(name, channels);
        return Environment.builder().host(there[0]).port(Integer.parseInt(there[1])).id(name)
            .rpcTimeout(Duration.ofSeconds(5)).recoveryBackOffDelayPolicy(BackOffDelayPolicy.fixed(SOON))
            .topologyUpdateBackOffDelayPolicy(BackOffDelayPolicy.fixed(SOON))
            .netty().channelCustomizer(channels::add).environmentBuilder().build();
    }

    private static Consumer consumer(Environment client, String[] words) {
        String id = words[1];
        ConsumerBuilder builder = client.consumerBuilder().name(words[5]).singleActiveConsumer()
            .offset(OffsetSpecification.first());
        builder = words[3].equals("super") ? builder.superStream(words[4]) : builder.stream(words[4]);
        boolean stores = words[0].equals("store");
        if (stores) {
            builder = builder.manualTrackingStrategy().checkInterval(Duration.ZERO).builder();
        } else {
            builder = builder.noTrackingStrategy().consumerUpdateListener(context -> {
                System.out.println(id + " " + context.stream() + (context.isActive() ? " active" : " idle"));
                CountDownLatch held = HELD.get(id);
                if (!context.isActive() && held != null) {
                    awaited(held);
                }
                return OffsetSpecification.first();
            });
        }
        return builder.messageHandler((context, message) -> {
            System.out.println(id + " " + context.stream() + " " + new String(message.getBodyAsBinary()));
            if (stores) {
                context.storeOffset();
            }
        }).build();
    }

    private static void awaited(CountDownLatch held) {
        try {
            held.await();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
