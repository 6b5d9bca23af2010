import java.lang.management.ManagementFactory;
import javax.management.ObjectName;

/** Writes /tmp/perf-PID.map every two seconds, so that the agent can name compiled code. */
final class PerfMap {
    static void keep() {
        Thread thread = new Thread(() -> {
            try {
                while (true) {
                    ManagementFactory.getPlatformMBeanServer().invoke(
                        new ObjectName("com.sun.management:type=DiagnosticCommand"), "compilerPerfmap",
                        new Object[0], new String[0]);
                    Thread.sleep(2000);
                }
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }, "perf-map");
        thread.setDaemon(true);
        thread.start();
    }
}
