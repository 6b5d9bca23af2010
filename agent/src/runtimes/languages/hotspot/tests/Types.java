/** Runs methods whose code calls stubs: to check interfaces, and to leave methods by an exception. */
public class Types {
    static volatile long sink;

    static final Object[] VALUES = {"text", 5, 2.5, new Object(), new StringBuilder(), new Object[0]};

    /** An object can be of many interfaces, so each check searches in a list. */
    static int check(Object value) {
        int count = 0;
        if (value instanceof Runnable) count += 1;
        if (value instanceof Comparable) count += 2;
        if (value instanceof Cloneable) count += 4;
        if (value instanceof CharSequence) count += 8;
        if (value instanceof java.io.Serializable) count += 16;
        return count;
    }

    static long types(int i) {
        long count = 0;
        for (int at = 0; at < 600; at++) count += check(VALUES[(i + at) % VALUES.length]);
        return count;
    }

    static int raise(RuntimeException error) {
        throw error;
    }

    static int third(RuntimeException error) {
        return raise(error) + 1;
    }

    static int second(RuntimeException error) {
        return third(error) + 2;
    }

    static int fail(RuntimeException error) {
        try {
            return second(error);
        } catch (RuntimeException caught) {
            return 3;
        }
    }

    static void run() {
        RuntimeException error = new RuntimeException();
        for (int i = 0; ; i = (i + 1) & 0xffff) {
            sink += types(i);
            sink += fail(error);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Thread thread = new Thread(Types::run, "types");
        thread.start();
        thread.join();
    }
}
