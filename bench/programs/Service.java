import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Random;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.zip.CRC32;
import java.util.zip.Deflater;

/** A small service: orders as text are read, priced, sorted, rendered and packed by two workers, over and over. */
final class Service implements Runnable {
    record Line(String sku, int count) {
        int price() {
            try {
                byte[] digest = MessageDigest.getInstance("SHA-256").digest(sku.getBytes(StandardCharsets.UTF_8));
                return count * ((digest[0] & 255) << 8 | digest[1] & 255);
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }
    }

    private static final Pattern LINE = Pattern.compile("\"sku\":\"([^\"]+)\",\"count\":(\\d+)");
    private final Random random;

    Service(long seed) {
        random = new Random(seed);
    }

    private String order() {
        return random.ints(30, 0, 5000)
            .mapToObj(sku -> "{\"sku\":\"sku-" + sku + "\",\"count\":" + (1 + sku % 8) + "}")
            .collect(Collectors.joining(",", "[", "]"));
    }

    private static String render(String order) {
        List<Line> lines = new ArrayList<>();
        for (Matcher matcher = LINE.matcher(order); matcher.find();) {
            lines.add(new Line(matcher.group(1), Integer.parseInt(matcher.group(2))));
        }
        lines.sort(Comparator.comparingInt(Line::price).reversed());
        StringBuilder out = new StringBuilder();
        for (Line line : lines) {
            out.append(String.format("%12s %8d%n", line.sku(), line.price()));
        }
        return out.toString();
    }

    @Override
    public void run() {
        byte[] packed = new byte[1 << 16];
        while (true) {
            byte[] text = render(order()).getBytes(StandardCharsets.UTF_8);
            new CRC32().update(text);
            Deflater deflater = new Deflater();
            deflater.setInput(text);
            deflater.finish();
            deflater.deflate(packed);
            deflater.end();
        }
    }

    public static void main(String[] arguments) {
        PerfMap.keep();
        new Thread(new Service(1), "worker-1").start();
        new Thread(new Service(2), "worker-2").start();
    }
}
