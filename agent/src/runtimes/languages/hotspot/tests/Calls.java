import java.lang.reflect.Method;
import java.security.AccessController;
import java.security.PrivilegedAction;
import java.util.Arrays;
import java.util.Random;
import java.util.function.IntToLongFunction;

/** At the end of random paths of calls, writes its own stack, and waits for one byte. */
public class Calls {
    static final Random RANDOM = new Random(1);
    static long sink;
    static boolean armed;

    interface Shape {
        long go(int depth, long x);
    }

    static class First implements Shape {
        public long go(int depth, long x) {
            return Calls.pick(depth, x + 1);
        }
    }

    static class Second implements Shape {
        public long go(int depth, long x) {
            return Calls.pick(depth, x + 2);
        }
    }

    static class Third implements Shape {
        public synchronized long go(int depth, long x) {
            return Calls.pick(depth, x + 3);
        }
    }

    static final Shape[] SHAPES = {new First(), new Second(), new Third()};
    static final Method METHOD;

    static {
        try {
            METHOD = Calls.class.getMethod("viaReflection", int.class, long.class);
        } catch (Exception error) {
            throw new RuntimeException(error);
        }
    }

    static long bottom(long x) {
        if (!armed) return x * 31 + 7;
        armed = false;
        return stop(x);
    }

    static long stop(long x) {
        StringBuilder text = new StringBuilder();
        for (StackTraceElement element : new Throwable().getStackTrace()) {
            text.append(element.getClassName()).append('\t').append(element.getMethodName()).append('\t');
            text.append(element.getFileName()).append('\t').append(element.getLineNumber()).append('\n');
        }
        System.out.print(text.append("end\n"));
        System.out.flush();
        try {
            if (System.in.read() < 0) System.exit(0);
        } catch (java.io.IOException error) {
            throw new RuntimeException(error);
        }
        return x + 1;
    }

    static long pick(int depth, long x) {
        if (depth == 0) return bottom(x);
        switch ((int) ((x ^ depth * 7) & 15)) {
            case 0: return inner(depth - 1, x) + 1;
            case 1: return SHAPES[depth % 3].go(depth - 1, x);
            case 2: return middle(depth - 1, x) * 3;
            case 3: {
                long y = 0;
                try {
                    y = outer(depth - 1, x);
                } finally {
                    sink += y;
                }
                return y;
            }
            case 4: return apply(k -> pick(depth - 1, x + k), depth);
            case 5: return locked(depth - 1, x);
            case 6: return reflect(depth - 1, x);
            case 7: return privileged(depth - 1, x);
            case 8: return stream(depth - 1, x);
            case 9: return huge(depth - 1, x);
            case 10: return caught(depth - 1, x);
            case 11: return many(depth - 1, x, 1, 2, 3, 4.0, 5.0f, "6", 7, 8L, 9);
            case 12: return SHAPES[(depth + 1) % 3].go(depth - 1, x ^ 1);
            case 13: return loop(depth - 1, x);
            case 14: return sorted(depth - 1, x);
            default: return outer(depth - 1, x ^ 2);
        }
    }

    static long inner(int depth, long x) {
        return middle(depth, x + 5) ^ 1;
    }

    static long middle(int depth, long x) {
        long y = x * 3;
        return outer(depth, y + 1) + 2;
    }

    static long outer(int depth, long x) {
        return pick(depth, x >>> 1) - 1;
    }

    static long apply(IntToLongFunction function, int depth) {
        return function.applyAsLong(depth);
    }

    static synchronized long locked(int depth, long x) {
        return pick(depth, x + 9);
    }

    public static long viaReflection(int depth, long x) {
        return pick(depth, x + 11);
    }

    static long reflect(int depth, long x) {
        try {
            return (Long) METHOD.invoke(null, depth, x);
        } catch (Exception error) {
            throw new RuntimeException(error);
        }
    }

    static long privileged(int depth, long x) {
        return AccessController.doPrivileged((PrivilegedAction<Long>) () -> pick(depth, x + 13));
    }

    static long stream(int depth, long x) {
        return Arrays.asList(1L, 2L).stream().mapToLong(value -> value == 1 ? pick(depth, x + 3) : 0).sum();
    }

    static long caught(int depth, long x) {
        try {
            if ((x & 1) == 0) throw new IllegalStateException();
            return pick(depth, x);
        } catch (IllegalStateException error) {
            return pick(depth, x + 1);
        }
    }

    static long many(int depth, long x, int a, int b, int c, double d, float e, String f, int g, long h, int i) {
        return pick(depth, x + a + b + c + (long) d + g + h + i);
    }

    static long loop(int depth, long x) {
        long sum = 0;
        for (int i = 0; i < 3; i++) {
            sum += i;
            if (i == 1) sum += pick(depth, x + i);
        }
        return sum;
    }

    static long sorted(int depth, long x) {
        Integer[] pair = {3, 1};
        long[] result = new long[1];
        Arrays.sort(pair, (a, b) -> {
            if (result[0] == 0) result[0] = pick(depth, x + 21);
            return a - b;
        });
        return result[0];
    }

    /** So large that it is never compiled. */
    static long huge(int depth, long x) {
        /* STATEMENTS */
        return pick(depth, x);
    }

    static void run() {
        for (int i = 0; ; i++) {
            if (i % 1000 == 0) System.gc();
            armed = i < 20 || RANDOM.nextInt(300) == 0;
            sink += pick(3 + RANDOM.nextInt(12), RANDOM.nextInt(100000));
        }
    }

    public static void main(String[] arguments) throws Exception {
        Thread thread = new Thread(Calls::run, "calls");
        thread.start();
        thread.join();
    }
}
