import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Map;

/**
 * A client of the control API of {@code fencepost serve --control}. Copy this file.
 *
 * <p>Paths and arguments are those of {@code GET /openapi.json}. Exceptions have the server's text.
 */
public class Control {
  private static final HttpClient HTTP = HttpClient.newHttpClient();
  private static final ObjectMapper JSON = new ObjectMapper();
  private final String url;

  public Control(String url) {
    this.url = url;
  }

  /** Carries out an operation: {@code post("groups/billing/fence", Map.of("member", "client-1"))}. */
  public JsonNode post(String path, Map<String, ?> arguments) {
    return ask("POST", path, arguments);
  }

  /** Reads something: {@code get("groups/billing/members")}. */
  public JsonNode get(String path) {
    return ask("GET", path, null);
  }

  /** Opens a part of the Kafka with topics and groups of its own, so that parallel tests share one. */
  public Scope scope(String name, Map<String, Integer> topics) {
    return new Scope(url, post("scopes", Map.of("name", name, "topics", topics)));
  }

  /** A part of a Kafka. All names in it begin with its prefix. */
  public static final class Scope extends Control implements AutoCloseable {
    private final String prefix;

    private Scope(String url, JsonNode opened) {
      super(url + "/scopes/" + opened.get("scope").asText());
      prefix = opened.get("prefix").asText();
    }

    public String name(String text) {
      return prefix + text;
    }

    @Override
    public void close() {
      ask("DELETE", "", null);
    }
  }

  JsonNode ask(String method, String path, Map<String, ?> arguments) {
    try {
      HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(path.isEmpty() ? url : url + "/" + path));
      String token = System.getenv("FENCEPOST_CONTROL_TOKEN");
      if (token != null) {
        request.header("Authorization", "Bearer " + token);
      }
      String body = arguments == null ? "" : JSON.writeValueAsString(arguments);
      request.method(method, HttpRequest.BodyPublishers.ofString(body));
      HttpResponse<String> response = HTTP.send(request.build(), HttpResponse.BodyHandlers.ofString());
      JsonNode told = JSON.readTree(response.body());
      if (response.statusCode() != 200) {
        throw new IllegalStateException(told.get("error").asText());
      }
      return told;
    } catch (IOException | InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }
}
