import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;

/** Runs all kinds of code in a known order of calls. */
public class Busy {
    static volatile long sink;

    interface Shape {
        long area(int i);
    }

    static class Square implements Shape {
        public long area(int i) {
            return spin(i + 1);
        }
    }

    static class Circle implements Shape {
        public long area(int i) {
            return spin(i + 2);
        }
    }

    static class Triangle implements Shape {
        public synchronized long area(int i) {
            return spin(i + 3);
        }
    }

    static final Shape[] SHAPES = {new Square(), new Circle(), new Triangle()};

    static long spin(int n) {
        long x = n;
        for (int i = 0; i < 20; i++) x = x * 31 + i;
        return x;
    }

    static long third(int i) {
        return spin(i) + 1;
    }

    static long second(int i) {
        return third(i) * 3 + third(i + 1);
    }

    static long first(int i) {
        return second(i) ^ 5;
    }

    static long recurse(int depth, int i) {
        return depth == 0 ? first(i) : recurse(depth - 1, i + depth) + 1;
    }

    static long shapes(int i) {
        return SHAPES[i % 3].area(i) + SHAPES[(i + 1) % 3].area(i);
    }

    static long sort(int i) {
        Integer[] values = new Integer[20];
        for (int at = 0; at < values.length; at++) values[at] = (i * 31 + at * 17) % 23;
        Arrays.sort(values, (a, b) -> compare(a, b));
        return values[0];
    }

    static int compare(int a, int b) {
        return (int) (spin(a) - spin(b));
    }

    static long fail(int i) {
        try {
            return raise(i);
        } catch (IllegalStateException error) {
            return i;
        }
    }

    static long raise(int i) {
        if (i % 3 == 0) throw new IllegalStateException();
        return first(i);
    }

    static long texts(int i) {
        StringBuilder text = new StringBuilder();
        for (int at = 0; at < 20; at++) text.append(i * at).append(' ').append(i * 0.5f);
        return text.toString().hashCode();
    }

    static long maps(int i) {
        Map<Integer, byte[]> map = new HashMap<>();
        for (int at = 0; at < 20; at++) map.put(at * i, new byte[at * 10]);
        byte[] copy = new byte[500];
        map.forEach((key, value) -> copy(value, copy));
        return copy[3];
    }

    static void copy(byte[] from, byte[] to) {
        System.arraycopy(from, 0, to, 0, from.length);
    }

    static long waits(int i) {
        if (i % 64 == 0) return System.nanoTime() + Thread.currentThread().hashCode();
        return System.identityHashCode(new Object());
    }

    static void run() {
        for (int i = 0; ; i = (i + 1) & 0xffff) {
            sink += recurse(30, i);
            sink += shapes(i);
            sink += sort(i);
            sink += fail(i);
            sink += texts(i);
            sink += maps(i);
            sink += waits(i);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Thread thread = new Thread(Busy::run, "busy");
        thread.start();
        thread.join();
    }
}
