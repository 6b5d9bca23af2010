import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadInfo;
import java.lang.management.ThreadMXBean;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.LockSupport;

/**
 * Works in known call paths in turn, for as many seconds as the argument says.
 *
 * <p>Prints the methods of each path, leaf first, and for each round its start and the CPU time of each path's work.
 */
public class Program {
    public static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    public static final Map<String, Long> SPENT = new ConcurrentHashMap<>();
    public static final Random RANDOM = new Random(1);
    public static volatile long sink;

    public interface Work {
        void run() throws Exception;
    }

    public static long cpuNs() {
        return THREADS.getCurrentThreadCpuTime();
    }

    public static long randomNs() {
        synchronized (RANDOM) {
            return 5_000_000 + RANDOM.nextInt(35_000_000);
        }
    }

    static void spin(String label) {
        long begin = cpuNs();
        long end = begin + randomNs();
        long total = 0;
        while (cpuNs() < end) {
            for (int i = 0; i < 20000; i++) {
                total = total * 31 + i;
            }
            sink = total;
        }
        SPENT.put(label, cpuNs() - begin);
    }

    static void workRecursion() {
        spin("recursion");
    }

    static void descend(int depth, Work work) throws Exception {
        if (depth == 0) {
            work.run();
        } else {
            descend(depth - 1, work);
        }
    }

    static void recursion() throws Exception {
        descend(40, new Work() {
            @Override
            public void run() {
                workRecursion();
            }
        });
    }

    static void workDeep() {
        spin("deep");
    }

    static void fall(int depth) {
        if (depth == 0) {
            workDeep();
        } else {
            fall(depth - 1);
        }
    }

    static void deep() {
        fall(900);
    }

    static void workClosure() {
        spin("closure");
    }

    static void call(Work work) throws Exception {
        work.run();
    }

    static void closure() throws Exception {
        call(() -> workClosure());
    }

    static void workException() {
        spin("exception");
    }

    static void throwUp(int depth) {
        if (depth == 0) {
            throw new IllegalStateException();
        }
        try {
            throwUp(depth - 1);
        } finally {
            sink = depth;
        }
    }

    static void catchIt() {
        try {
            throwUp(20);
        } catch (IllegalStateException exception) {
            workException();
        }
    }

    static void exception() {
        catchIt();
    }

    static void workCompare() {
        spin("compare");
    }

    static int compareTwo(Integer left, Integer right) {
        workCompare();
        return left - right;
    }

    static void compare() {
        Integer[] values = {2, 1};
        Arrays.sort(values, Program::compareTwo);
    }

    static void workReflected() {
        spin("reflected");
    }

    public static void target() {
        workReflected();
    }

    static void reflected() throws Exception {
        Method method = Program.class.getMethod("target");
        method.invoke(null);
    }

    static void workStream() {
        spin("stream");
    }

    static void eachOf(Integer value) {
        workStream();
    }

    static void stream() {
        Collections.singletonList(1).stream().map(value -> value + 1).forEach(Program::eachOf);
    }

    public static void workRedefined0() {
        spin("redefined0");
    }

    public static void workRedefined1() {
        spin("redefined1");
    }

    public static void workFreed() {
        spin("freed");
    }

    /** Classes that are defined anew in each round. */
    public static class Function0 implements Work {
        @Override
        public void run() {
            workRedefined0();
        }
    }

    public static class Function1 implements Work {
        @Override
        public void run() {
            workRedefined1();
        }
    }

    public static class Function2 implements Work {
        @Override
        public void run() {
            workFreed();
        }
    }

    /** Work whose methods are optimized, and deoptimized by the classes and types that they meet later. */
    public static class Changing implements Work {
        interface Shape {
            long area(int side);
        }

        static class Square implements Shape {
            @Override
            public long area(int side) {
                return (long) side * side;
            }
        }

        static class Circle implements Shape {
            @Override
            public long area(int side) {
                return (long) (side * side * 3.14);
            }
        }

        static class Text implements Shape {
            @Override
            public long area(int side) {
                return 3 * side + 1;
            }
        }

        @Override
        public void run() {
            work();
        }

        static void work() {
            long begin = cpuNs();
            long part = randomNs() / 3;
            measure(new Square(), begin + part);
            measure(new Circle(), begin + 2 * part);
            measure(new Text(), begin + 3 * part);
            SPENT.put("changing", cpuNs() - begin);
        }

        static void measure(Shape shape, long end) {
            long total = 0;
            while (cpuNs() < end) {
                for (int i = 0; i < 5000; i++) {
                    total = total * 31 + shape.area(i);
                }
                sink = total;
            }
        }
    }

    /** Defines classes of this program again. The classes disappear with the loader. */
    static class Loader extends ClassLoader {
        Loader() {
            super(Program.class.getClassLoader());
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (!name.startsWith("Program$Function") && !name.startsWith("Program$Changing")) {
                return super.loadClass(name, resolve);
            }
            Class<?> loaded = findLoadedClass(name);
            if (loaded != null) {
                return loaded;
            }
            try (InputStream stream = getResourceAsStream(name + ".class")) {
                ByteArrayOutputStream bytes = new ByteArrayOutputStream();
                for (int next = stream.read(); 0 <= next; next = stream.read()) {
                    bytes.write(next);
                }
                return defineClass(name, bytes.toByteArray(), 0, bytes.size());
            } catch (java.io.IOException exception) {
                throw new ClassNotFoundException(name, exception);
            }
        }
    }

    /** Objects of the last rounds. Their classes are freed later than 250 ms after their last call. */
    static final List<Object> KEPT = new ArrayList<>();

    /** Loads a class twenty times, and calls the last one. Later methods take the memory of earlier ones. */
    static Object redefine(String name) throws Exception {
        Work work = null;
        for (int i = 0; i < 20; i++) {
            work = (Work) new Loader().loadClass(name).getConstructor().newInstance();
        }
        work.run();
        return work;
    }

    static void keep(Object object) {
        KEPT.add(object);
        if (KEPT.size() > 9) {
            KEPT.remove(0);
        }
    }

    static void redefined0() throws Exception {
        keep(redefine("Program$Function0"));
    }

    static void redefined1() throws Exception {
        keep(redefine("Program$Function1"));
    }

    static void freed() throws Exception {
        redefine("Program$Function2");
        System.gc();
    }

    static void changing() throws Exception {
        keep(redefine("Program$Changing"));
    }

    static void workThread0() {
        spin("thread0");
    }

    static void workThread1() {
        spin("thread1");
    }

    static void workThread2() {
        spin("thread2");
    }

    static void workThread3() {
        spin("thread3");
    }

    static void runThreads() throws Exception {
        Runnable[] works = {Program::workThread0, Program::workThread1, Program::workThread2, Program::workThread3};
        List<Thread> threads = new ArrayList<>();
        for (Runnable work : works) {
            Thread thread = new Thread(work);
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    /** Starts a virtual thread; null before Java 21. */
    static final Method START_VIRTUAL = startVirtual();

    static Method startVirtual() {
        // The thread's clock is that of its carrier, so there must be only one.
        System.setProperty("jdk.virtualThreadScheduler.parallelism", "1");
        System.setProperty("jdk.virtualThreadScheduler.maxPoolSize", "1");
        try {
            return Thread.class.getMethod("startVirtualThread", Runnable.class);
        } catch (NoSuchMethodException exception) {
            return null;
        }
    }

    /** Returns the id of the thread that runs all virtual threads. */
    static long carrier() {
        for (ThreadInfo info : THREADS.getThreadInfo(THREADS.getAllThreadIds())) {
            if (info != null && info.getThreadName().startsWith("ForkJoinPool-1-worker")) {
                return info.getThreadId();
            }
        }
        throw new IllegalStateException("no thread runs virtual threads");
    }

    static void workVirtual() {
        long carrier = carrier();
        long begin = THREADS.getThreadCpuTime(carrier);
        long end = begin + randomNs();
        long total = 0;
        while (THREADS.getThreadCpuTime(carrier) < end) {
            for (int i = 0; i < 20000; i++) {
                total = total * 31 + i;
            }
            sink = total;
        }
        SPENT.put("virtual", THREADS.getThreadCpuTime(carrier) - begin);
    }

    /** Waits first, so that the thread leaves its carrier and comes back. */
    static void runVirtual() {
        LockSupport.parkNanos(1_000_000);
        callVirtual(10);
    }

    static void callVirtual(int depth) {
        if (depth == 0) {
            workVirtual();
        } else {
            callVirtual(depth - 1);
        }
    }

    static void virtual() throws Exception {
        if (START_VIRTUAL != null) {
            ((Thread) START_VIRTUAL.invoke(null, (Runnable) Program::runVirtual)).join();
        }
    }

    static List<String> labels() {
        String[] labels = {
            "recursion", "deep", "closure", "exception", "compare", "reflected", "stream", "redefined0", "redefined1",
            "freed", "changing", "thread0", "thread1", "thread2", "thread3",
        };
        List<String> all = new ArrayList<>(Arrays.asList(labels));
        if (START_VIRTUAL != null) {
            all.add("virtual");
        }
        return all;
    }

    static void oneRound() throws Exception {
        recursion();
        deep();
        closure();
        exception();
        compare();
        reflected();
        stream();
        redefined0();
        redefined1();
        freed();
        changing();
        runThreads();
        virtual();
    }

    /** Prints a case. Functions without a class are those of this class. */
    static void print(String label, String... between) {
        StringBuilder line = new StringBuilder("case " + label);
        char separator = ' ';
        for (String function : between) {
            line.append(separator).append(function.contains(".") ? "" : "Program.").append(function);
            separator = ';';
        }
        System.out.println(line);
    }

    static void printCases() {
        System.out.println("inner Program.cpuNs\ninner Program.randomNs\ninner Program.carrier");
        System.out.println("inner Program$Loader.loadClass\ninner Program$Changing.measure");
        for (String shape : new String[] {"Square", "Circle", "Text"}) {
            System.out.println("inner Program$Changing$" + shape + ".area");
        }
        print("recursion", "spin", "workRecursion", "Program$1.run", "descend*41", "recursion", "oneRound", "main");
        print("deep", "spin", "workDeep", "fall*901", "deep", "oneRound", "main");
        print("closure", "spin", "workClosure", "lambda$closure$0", "call", "closure", "oneRound", "main");
        print("exception", "spin", "workException", "catchIt", "exception", "oneRound", "main");
        print("compare", "spin", "workCompare", "compareTwo", "compare", "oneRound", "main");
        print("reflected", "spin", "workReflected", "target", "reflected", "oneRound", "main");
        print("stream", "spin", "workStream", "eachOf", "stream", "oneRound", "main");
        String[] redefined = {"redefined0", "redefined1", "freed"};
        String[] work = {"workRedefined0", "workRedefined1", "workFreed"};
        for (int i = 0; i < 3; i++) {
            String function = "Program$Function" + i + (i == 2 ? ".run?" : ".run");
            print(redefined[i], "spin", work[i], function, "redefine", redefined[i], "oneRound", "main");
        }
        print("changing", "Program$Changing.work", "Program$Changing.run", "redefine", "changing", "oneRound", "main");
        for (int i = 0; i < 4; i++) {
            print("thread" + i, "spin", "workThread" + i);
        }
        if (START_VIRTUAL != null) {
            print("virtual", "workVirtual", "callVirtual*11", "runVirtual");
        }
    }

    public static void main(String[] arguments) throws Exception {
        StringBuilder rounds = new StringBuilder();
        long until = System.currentTimeMillis() + (long) (1000 * Double.parseDouble(arguments[0]));
        while (System.currentTimeMillis() < until) {
            rounds.append("round ").append(System.currentTimeMillis() * 1_000_000);
            oneRound();
            for (String label : labels()) {
                rounds.append(' ').append(SPENT.get(label));
            }
            rounds.append('\n');
        }
        // The agent reads the last names while the program still runs.
        Thread.sleep(1000);
        printCases();
        System.out.print(rounds);
    }
}
