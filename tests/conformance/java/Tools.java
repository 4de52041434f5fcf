import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
import java.util.Base64;
import org.apache.kafka.common.utils.Exit;

/** Runs tools of Kafka's one after the other: a line has the main class and its arguments, with tabs between. */
public final class Tools {
    private static final class Ended extends Error {}

    /** The stream of a tool, which some of them keep for the next one. */
    private static final class Said extends OutputStream {
        private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();

        @Override
        public synchronized void write(int one) {
            bytes.write(one);
        }

        synchronized String taken() {
            String text = Base64.getEncoder().encodeToString(bytes.toByteArray());
            bytes.reset();
            return text;
        }
    }

    private static Integer status;

    private static void end(int code) {
        if (status == null) {
            status = code;
        }
        throw new Ended();
    }

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        Said out = new Said();
        Said err = new Said();
        System.setOut(new PrintStream(out, true));
        System.setErr(new PrintStream(err, true));
        Exit.setExitProcedure((code, message) -> end(code));
        Exit.setHaltProcedure((code, message) -> end(code));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", -1);
            status = null;
            try {
                Object arguments = Arrays.copyOfRange(words, 1, words.length);
                Class.forName(words[0]).getMethod("main", String[].class).invoke(null, arguments);
            } catch (InvocationTargetException error) {
                if (!(error.getCause() instanceof Ended)) {
                    error.getCause().printStackTrace();
                    status = 1;
                }
            }
            answers.println("DONE " + (status == null ? 0 : status) + " ." + out.taken() + " ." + err.taken());
        }
        System.setOut(answers);
        answers.println("CLOSED");
    }
}
