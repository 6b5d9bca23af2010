import java.io.StringWriter;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;

/** A compiler: two workers run javac on the sources in this folder and on generated sources, over and over. */
final class Compile implements Runnable {
    private final Path folder;
    private final Path out;

    Compile(Path folder, Path out) {
        this.folder = folder;
        this.out = out;
    }

    private static JavaFileObject source(String name, String text) {
        return new SimpleJavaFileObject(URI.create("string:///" + name + ".java"), JavaFileObject.Kind.SOURCE) {
            @Override
            public CharSequence getCharContent(boolean ignoreEncodingErrors) {
                return text;
            }
        };
    }

    /** Returns a class, different for each number: generics, lambdas, switches and loops in other proportions. */
    private static String generated(String name, int number) {
        StringBuilder body = new StringBuilder("import java.util.*; import java.util.function.*; class " + name + " {\n");
        for (int i = 0; i < 20 + number % 30; i++) {
            body.append("  sealed interface S" + i + " permits A" + i + ", B" + i + " {}\n")
                .append("  record A" + i + "(int x, List<String> y) implements S" + i + " {}\n")
                .append("  record B" + i + "(Map<String, ? extends Number> z) implements S" + i + " {}\n")
                .append("  static <T extends Comparable<T>> Optional<T> best" + i + "(Collection<? extends T> all) {\n")
                .append("    T best = null; for (T one : all) { if (best == null || one.compareTo(best) > 0) best = one; }\n")
                .append("    return Optional.ofNullable(best); }\n")
                .append("  static int fold" + i + "(S" + i + " s) { if (s instanceof A" + i + " a) return a.x() + a.y().stream()")
                .append(".map(String::length).reduce(0, Integer::sum); long v = 1; for (int k = 0; k < " + number + "; k++) ")
                .append("{ switch (k % 4) { case 0 -> v += k; case 1 -> v ^= v << 3; default -> v *= 31; } } ")
                .append("Supplier<Long> held = () -> 7L; return (int) (v + held.get()); }\n")
                .append("  static String text" + i + "(int n) { try { return \"a\" + n + 'b' + n * 2.5 + (n > 3 ? \"c\" : 'd'); } ")
                .append("finally { System.identityHashCode(n); } }\n");
        }
        return body.append("}\n").toString();
    }

    @Override
    public void run() {
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        List<String> options = List.of("-d", out.toString(), "-proc:none", "-Xlint:all");
        for (int number = 0;; number++) {
            try {
                String compile = Files.readString(folder.resolve("Compile.java"));
                List<JavaFileObject> sources = List.of(
                    source("Generated", generated("Generated", number)),
                    source("Other", generated("Other", number * 7)),
                    source("PerfMap", Files.readString(folder.resolve("PerfMap.java"))),
                    source("Compile", compile),
                    source("Service", Files.readString(folder.resolve("Service.java"))));
                compiler.getTask(new StringWriter(), null, null, options, null, sources).call();
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
        }
    }

    public static void main(String[] arguments) throws java.io.IOException {
        PerfMap.keep();
        for (int i = 0; i < 2; i++) {
            Path out = Files.createDirectories(Path.of(arguments[1], "worker-" + i));
            new Thread(new Compile(Path.of(arguments[0]), out), "compiler-" + i).start();
        }
    }
}
