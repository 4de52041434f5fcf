import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.function.Consumer;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A service that charges orders. It commits an order after its charge, so an order may be charged twice, and is
 * never lost.
 */
public class Orders implements AutoCloseable {
  private final KafkaConsumer<String, String> consumer;
  private final Consumer<String> charge;

  /** {@code more} has the consumer's {@code bootstrap.servers} and {@code group.id}, and may have other settings. */
  public Orders(Map<String, String> more, String topic, Consumer<String> charge) {
    Properties settings = new Properties();
    settings.put("group.protocol", "consumer");
    settings.put("isolation.level", "read_committed");
    settings.put("enable.auto.commit", "false");
    settings.put("auto.offset.reset", "earliest");
    settings.put("key.deserializer", StringDeserializer.class.getName());
    settings.put("value.deserializer", StringDeserializer.class.getName());
    settings.putAll(more);
    this.consumer = new KafkaConsumer<>(settings);
    this.consumer.subscribe(List.of(topic));
    this.charge = charge;
  }

  /** Charges the orders that are there. */
  public void poll() {
    for (ConsumerRecord<String, String> order : consumer.poll(Duration.ofMillis(20))) {
      charge.accept(order.value());
      try {
        TopicPartition partition = new TopicPartition(order.topic(), order.partition());
        consumer.commitSync(Map.of(partition, new OffsetAndMetadata(order.offset() + 1)));
      } catch (CommitFailedException | RetriableException lost) {
        return; // the orders come again, to this service or to another one
      }
    }
  }

  @Override
  public void close() {
    consumer.close();
  }
}
