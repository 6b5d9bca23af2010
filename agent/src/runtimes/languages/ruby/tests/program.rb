# Is busy in all kinds of functions, and stops at many points of them. The arguments are the file to which it prints its
# stack, and a seed.
PRINTED = ARGV[0]
RANDOM = Random.new(ARGV[1].to_i)

# Prints the stack and stops, once in a while.
def check
  return if RANDOM.rand(60) != 0
  File.write(PRINTED, caller(0).join("\n")); Process.kill(:TRAP, Process.pid)
end

def spin(count)
  total = 0
  i = 0
  while i < count
    total = (total * 75 + i) % 65_537
    i += 1
  end
  check
  total
end

def fib(n)
  n < 2 ? spin(n) : fib(n - 1) + fib(n - 2)
end

module Shapes
  class Shape
    attr_reader :width

    def initialize(width)
      @width = width
    end

    def self.of(width)
      shape = new(width)
      spin_twice(shape)
    end

    def self.spin_twice(shape)
      2.times { spin(3) }
      shape
    end

    def <=>(other)
      area <=> other.area
    end

    def area
      [1, 2].inject(0) do |sum, part|
        sum + spin(part) * width
      end
    end

    define_method(:defined) do |count|
      spin(count)
    end

    def method_missing(name, *arguments)
      spin(name.to_s.size + arguments.size)
    end

    def respond_to_missing?(*)
      true
    end

    def to_s
      "shape #{spin(4)}"
    end

    class << self
      def singleton
        spin(5)
      end
    end
  end

  class Square < Shape
    def area
      super + spin(2)
    end
  end
end

def yields
  yield 1
  yield 2
ensure
  spin(2)
end

def rescued(depth)
  raise ArgumentError, "deep" if depth == 0
  rescued(depth - 1)
rescue ArgumentError => error
  spin(error.message.size)
  raise if depth > 2
  0
end

def collections
  shapes = [9, 3, 7].map { |width| Shapes::Square.new(width) }
  shapes.sort
  shapes.each { |shape| shape.unknown(1, 2) }
  shapes.sort_by { |shape| shape.defined(shape.width) }
  { a: 1, b: 2 }.each_pair do |key, value|
    [key].each { |inner| spin(value + inner.size) }
  end
  shapes.first.to_s
end

def closures
  add = ->(n) { spin(n) + 1 }
  twice = proc { |n| add.call(add.(n)) }
  [1, 2].map(&twice)
  catch(:done) { 3.times { |i| i == 1 ? throw(:done) : spin(i) } }
end

def texts(round)
  eval("def of_text_#{round}(n)\n  spin(n)\n\n  spin(n)\nend\nof_text_#{round}(3)", binding, "(text)", 7)
  Shapes::Shape.class_eval { spin(2) }
  "text".instance_eval { spin(size) }
end

def enumerated
  numbers = Enumerator.new do |out|
    out << spin(1)
    out << spin(2)
  end
  numbers.next
  numbers.next
  fiber = Fiber.new { |n| spin(n); Fiber.yield(spin(n)); spin(2) }
  fiber.resume(3)
  fiber.resume
end

# Has more instructions than one word, and than one block, of the index of lines describe.
LONG = "def long_text(a)\n" + (1..300).map { |n| n % 40 == 0 ? "a += spin(#{n} % 7)\n" : "a += #{n}\n" }.join + "end"
eval(LONG, binding, "(long)", 1)

def descend(depth)
  if depth > 0
    descend(depth - 1)
  else
    spin(3)
  end
end

round = 0
loop do
  round += 1
  fib(4)
  collections
  closures
  yields { |n| spin(n) }
  begin
    rescued(4)
  rescue ArgumentError
    spin(1)
  end
  texts(round % 50)
  enumerated
  long_text(1)
  Shapes::Shape.singleton
  Shapes::Shape.of(2)
  descend(30)
end
