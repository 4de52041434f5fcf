import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.assignment.ProcessId;
import org.apache.kafka.streams.processor.internals.assignment.AssignmentInfo;
import org.apache.kafka.streams.processor.internals.assignment.SubscriptionInfo;
import org.apache.kafka.streams.state.HostInfo;

/**
 * Encodes and decodes the metadata of Kafka Streams with its own classes.
 *
 * Each line of input is a JSON object with "kind" (subscription or assignment) and either a "value", to be encoded,
 * or "hex", to be decoded. Each line of output is an object with the other one, or with "error".
 */
public class StreamsMetadata {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                JsonNode asked = JSON.readTree(line);
                boolean subscription = asked.get("kind").asText().equals("subscription");
                if (asked.has("value")) {
                    JsonNode value = asked.get("value");
                    ByteBuffer data = subscription ? subscription(value).encode() : assignment(value).encode();
                    byte[] bytes = new byte[data.remaining()];
                    data.get(bytes);
                    answer.put("hex", HexFormat.of().formatHex(bytes));
                } else {
                    ByteBuffer data = ByteBuffer.wrap(HexFormat.of().parseHex(asked.get("hex").asText()));
                    answer.set("value", subscription
                        ? told(SubscriptionInfo.decode(data)) : told(AssignmentInfo.decode(data)));
                }
            } catch (RuntimeException error) {
                answer.put("error", error.getClass().getSimpleName());
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
    }

    private static SubscriptionInfo subscription(JsonNode value) {
        Map<TaskId, Long> sums = new LinkedHashMap<>();
        for (JsonNode sum : value.get("sums")) {
            sums.put(task(sum), sum.get(3).asLong());
        }
        Map<String, String> tags = new LinkedHashMap<>();
        for (JsonNode tag : value.get("tags")) {
            tags.put(tag.get(0).asText(), tag.get(1).asText());
        }
        return new SubscriptionInfo(
            value.get("version").asInt(), value.get("latest").asInt(),
            new ProcessId(UUID.fromString(value.get("process").asText())), text(value.get("endpoint")), sums,
            (byte) value.get("unique").asInt(), value.get("error").asInt(), tags);
    }

    private static AssignmentInfo assignment(JsonNode value) {
        List<TaskId> active = new ArrayList<>();
        value.get("active").forEach(one -> active.add(task(one)));
        Map<TaskId, Set<TopicPartition>> standby = new LinkedHashMap<>();
        value.get("standby").forEach(one -> standby.put(task(one.get(0)), partitions(one.get(1))));
        AssignmentInfo info = new AssignmentInfo(
            value.get("version").asInt(), value.get("common").asInt(), active, standby,
            hosts(value.get("hosts")), hosts(value.get("standby_hosts")), value.get("error").asInt());
        info.setNextRebalanceTime(value.get("next").asLong());
        return info;
    }

    private static TaskId task(JsonNode value) {
        return new TaskId(value.get(0).asInt(), value.get(1).asInt(), text(value.get(2)));
    }

    private static String text(JsonNode value) {
        return value.isNull() ? null : value.asText();
    }

    private static Set<TopicPartition> partitions(JsonNode value) {
        Set<TopicPartition> partitions = new LinkedHashSet<>();
        value.forEach(one -> partitions.add(new TopicPartition(one.get(0).asText(), one.get(1).asInt())));
        return partitions;
    }

    private static Map<HostInfo, Set<TopicPartition>> hosts(JsonNode value) {
        Map<HostInfo, Set<TopicPartition>> hosts = new LinkedHashMap<>();
        value.forEach(one ->
            hosts.put(new HostInfo(one.get(0).asText(), one.get(1).asInt()), partitions(one.get(2))));
        return hosts;
    }

    private static ObjectNode told(SubscriptionInfo info) {
        ObjectNode value = JSON.createObjectNode();
        value.put("version", info.version());
        value.put("latest", info.latestSupportedVersion());
        value.put("process", info.processId().id().toString());
        value.put("endpoint", info.userEndPoint());
        ArrayNode sums = value.putArray("sums");
        info.taskOffsetSums().forEach((task, sum) -> told(sums.addArray(), task).add(sum));
        value.put("error", info.errorCode());
        ArrayNode tags = value.putArray("tags");
        info.clientTags().forEach((key, tag) -> tags.addArray().add(key).add(tag));
        return value;
    }

    private static ObjectNode told(AssignmentInfo info) {
        ObjectNode value = JSON.createObjectNode();
        value.put("version", info.version());
        value.put("common", info.commonlySupportedVersion());
        ArrayNode active = value.putArray("active");
        info.activeTasks().forEach(task -> told(active.addArray(), task));
        ArrayNode standby = value.putArray("standby");
        info.standbyTasks().forEach((task, partitions) -> {
            ArrayNode row = standby.addArray();
            told(row.addArray(), task);
            told(row.addArray(), partitions);
        });
        told(value.putArray("hosts"), info.partitionsByHost());
        told(value.putArray("standby_hosts"), info.standbyPartitionByHost());
        value.put("error", info.errCode());
        value.put("next", info.nextRebalanceMs());
        return value;
    }

    private static ArrayNode told(ArrayNode row, TaskId task) {
        return row.add(task.subtopology()).add(task.partition()).add(task.topologyName());
    }

    private static void told(ArrayNode rows, Set<TopicPartition> partitions) {
        partitions.forEach(one -> rows.addArray().add(one.topic()).add(one.partition()));
    }

    private static void told(ArrayNode rows, Map<HostInfo, Set<TopicPartition>> hosts) {
        hosts.forEach((host, partitions) ->
            told(rows.addArray().add(host.host()).add(host.port()).addArray(), partitions));
    }
}
