import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The Java producer with transactions: it writes some records to the first topic and takes as many back, moves the
 * others to the second one together with the offsets of a member, and is refused where that member is gone.
 */
public class TransactionJudge {
    private static final int COUNT = 20;

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0];
        String from = arguments[1];
        String to = arguments[2];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("transactional.id", "judge");
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, text, text)) {
            producer.initTransactions();
            write(producer, from);
            producer.commitTransaction();
            write(producer, from);
            producer.flush();
            producer.abortTransaction();

            ConsumerGroupMetadata gone;
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            try (KafkaConsumer<String, String> member = consumer(servers, "g", from)) {
                producer.beginTransaction();
                for (int left = COUNT; left > 0; ) {
                    for (ConsumerRecord<String, String> record : member.poll(Duration.ofMillis(50))) {
                        left--;
                        producer.send(new ProducerRecord<>(to, record.key(), record.value()));
                        TopicPartition place = new TopicPartition(record.topic(), record.partition());
                        offsets.put(place, new OffsetAndMetadata(record.offset() + 1));
                    }
                }
                gone = member.groupMetadata();
                producer.sendOffsetsToTransaction(offsets, gone);
                producer.commitTransaction();
                System.out.println("COMMITTED " + member.committed(offsets.keySet()).equals(offsets));
            }
            producer.beginTransaction();
            try {
                producer.sendOffsetsToTransaction(offsets, gone);
            } catch (KafkaException error) {
                System.out.println("REFUSED " + error.getClass().getSimpleName());
            }
            producer.abortTransaction();
        }
        int moved = 0;
        try (KafkaConsumer<String, String> reader = consumer(servers, "h", to)) {
            while (moved < COUNT) {
                moved += reader.poll(Duration.ofMillis(50)).count();
            }
        }
        System.out.println("MOVED " + moved);
    }

    private static void write(KafkaProducer<String, String> producer, String topic) {
        producer.beginTransaction();
        for (int number = 0; number < COUNT; number++) {
            producer.send(new ProducerRecord<>(topic, "key " + number, "value " + number));
        }
    }

    private static KafkaConsumer<String, String> consumer(String servers, String group, String topic) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", group);
        settings.put("group.protocol", "consumer");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", "read_committed");
        StringDeserializer text = new StringDeserializer();
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, text, text);
        consumer.subscribe(List.of(topic));
        return consumer;
    }
}
