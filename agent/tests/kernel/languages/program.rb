# Works in known call paths in turn, for as many seconds as the argument says.
#
# Prints the methods of each path, leaf first, and for each round its start and the CPU time of each path's work.

SPENT = {}
RANDOM = Random.new(1)

def cpu_ns
  Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID, :nanosecond)
end

def unix_ns
  Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond)
end

def spin(label)
  begin_ns = cpu_ns
  end_ns = begin_ns + RANDOM.rand(5_000_000..40_000_000)
  total = 0
  while cpu_ns < end_ns
    i = 0
    while i < 500
      total += i * i
      i += 1
    end
  end
  SPENT[label] = cpu_ns - begin_ns
end

def work_recursion
  spin('recursion')
end

def descend(depth, work)
  depth.zero? ? send(work) : descend(depth - 1, work)
end

def recursion
  descend(40, :work_recursion)
end

def work_deep
  spin('deep')
end

def deep
  descend(900, :work_deep)
end

def work_closure
  spin('closure')
end

class Worker
  def initialize(work)
    @work = work
  end

  def method
    (-> { @work.call }).call
  end
end

def enclose
  worker = Worker.new(proc { work_closure })
  lambda { worker.method }
end

def closure
  enclose.call
end

def work_generator
  spin('generator')
end

def generator
  numbers = Enumerator.new do |yielder|
    yielder << 1
    work_generator
    yielder << 2
  end
  numbers.next
  numbers.next
end

def work_fiber
  spin('fiber')
end

def resumed(depth)
  if depth.zero?
    Fiber.yield
    work_fiber
  else
    resumed(depth - 1)
  end
end

def fiber
  fiber = Fiber.new { resumed(10) }
  fiber.resume
  fiber.resume
end

def work_exception
  spin('exception')
end

def throws(depth)
  raise ArgumentError if depth.zero?
  begin
    throws(depth - 1)
  ensure
    depth = 0
  end
end

def catches
  throws(20)
rescue ArgumentError
  work_exception
end

def exception
  catches
end

def work_native
  spin('native')
end

class Compared
  def <=>(other)
    work_native
    0
  end
end

def reduce
  [1].inject(0) { |sum, _| [Compared.new, Compared.new].sort && sum }
end

def native
  [1].each_with_index { |_, _| reduce }
end

def work_missing
  spin('missing')
end

class Missing
  def method_missing(name)
    work_missing
  end

  def respond_to_missing?(*)
    true
  end
end

def missing
  Missing.new.public_send(:unknown)
end

def work_redefined_0
  spin('redefined_0')
end

def work_redefined_1
  spin('redefined_1')
end

def work_freed
  spin('freed')
end

# Methods of the last rounds. They are freed later than 250 ms after their last call, when their names are read.
KEPT = []

# Makes a method twenty times, and calls the last one. Later methods take the memory of earlier ones.
def redefine(name, work)
  20.downto(1) { eval("def #{name}; #{work}; end") }
  send(name)
end

def keep(name)
  KEPT << method(name)
  KEPT.shift if KEPT.size > 6
end

def redefined_0
  redefine(:function_0, :work_redefined_0)
  keep(:function_0)
end

def redefined_1
  redefine(:function_1, :work_redefined_1)
  keep(:function_1)
end

# The method is freed at once.
def freed
  redefine(:function_2, :work_freed)
  Object.send(:remove_method, :function_2)
  GC.start
end

def work_thread_0
  spin('thread_0')
end

def work_thread_1
  spin('thread_1')
end

def work_thread_2
  spin('thread_2')
end

def work_thread_3
  spin('thread_3')
end

THREADS = %w[thread_0 thread_1 thread_2 thread_3].freeze

def run_threads
  threads = [Thread.new { work_thread_0 }, Thread.new { work_thread_1 }]
  threads += [Thread.new { work_thread_2 }, Thread.new { work_thread_3 }]
  threads.each(&:join)
end

# The methods between the work of each case and `main`, leaf first.
MAIN = ['main', '<main>'].freeze
CASES = {
  'recursion' => ['descend*41', 'recursion', *MAIN],
  'deep' => ['descend*901', 'deep', *MAIN],
  'closure' => ['block in enclose', 'block in method', 'method', 'block in enclose', 'closure', *MAIN],
  'generator' => ['block in generator', 'each*2'],
  'fiber' => ['resumed*11', 'block in fiber'],
  'exception' => ['rescue in catches', 'catches', 'exception', *MAIN],
  'native' => [
    '<=>', 'sort', 'block in reduce', 'each', 'inject', 'reduce', 'block in native', 'each', 'each_with_index', 'native',
    *MAIN
  ],
  'missing' => ['method_missing', 'public_send', 'missing', *MAIN],
  'redefined_0' => ['function_0', 'redefine', 'redefined_0', *MAIN],
  'redefined_1' => ['function_1', 'redefine', 'redefined_1', *MAIN],
  'freed' => ['function_2?', 'redefine', 'freed', *MAIN]
}.freeze
OF_THREADS = THREADS.map { |name| [name, ['block in run_threads']] }.to_h.freeze

def main
  rounds = []
  end_ns = unix_ns + ARGV[0].to_f * 1_000_000_000
  names = CASES.keys
  while unix_ns < end_ns
    begin_ns = unix_ns
    at = 0
    while at < names.size
      send(names[at])
      at += 1
    end
    run_threads
    rounds << [begin_ns, SPENT.dup]
  end
  # The agent reads the last names while the program still runs.
  sleep 1
  all = CASES.merge(OF_THREADS)
  puts 'inner cpu_ns', 'inner clock_gettime', 'inner rand'
  # Compiled code calls operators like other methods in C.
  puts 'inner *', 'inner +', 'inner <'
  all.each { |name, stack| puts "case #{name} #{['spin', "work_#{name}", *stack].join(';')}" }
  rounds.each { |begin_ns, cpu| puts ['round', begin_ns, *all.keys.map { |name| cpu[name] }].join(' ') }
end

main
