<?php
// Program that is busy in all kinds of functions. It runs on PHP 7.3 and later.
namespace Shapes;

interface Area { public function area(): int; }

trait Scales {
    private $factor = 2;
    public function scaled(): int { return $this->area() * $this->factor; }
}

class Shape implements Area {
    use Scales;
    protected $width;
    private $values = [];
    public static $destroyed = 0;

    public function __construct(int $width) { $this->width = $width; }

    public function area(): int {
        return array_sum(array_map(
            function ($part) { return $part * $this->width; },
            range(1, $this->width)
        ));
    }

    public static function of(int $width): self { return new static($width); }

    public function __get($name) { return $this->values[$name] ?? fib(4) + strlen($name); }
    public function __call($name, $arguments) { return fib(3) + count($arguments); }
    public static function __callStatic($name, $arguments) { return fib(2); }
    public function __toString() { return 'shape ' . $this->area(); }
    public function __destruct() { self::$destroyed += fib(3); }
    public function __invoke($value) { return $value + fib(3); }
}

class Square extends Shape implements \IteratorAggregate, \Countable, \ArrayAccess {
    public function area(): int { return parent::area() + 1; }
    public function getIterator(): \Iterator { return new \ArrayIterator([fib(3), fib(4)]); }
    #[\ReturnTypeWillChange]
    public function count() { return fib(3); }
    #[\ReturnTypeWillChange]
    public function offsetExists($key) { return true; }
    #[\ReturnTypeWillChange]
    public function offsetGet($key) { return fib(4) + $key; }
    #[\ReturnTypeWillChange]
    public function offsetSet($key, $value) { fib(2); }
    #[\ReturnTypeWillChange]
    public function offsetUnset($key) { fib(2); }
}

function fib($n) { return $n < 2 ? $n : fib($n - 1) + fib($n - 2); }

function spin($n) {
    $x = 1;
    for ($i = 0; $i < $n; $i++) {
        $x = ($x * 75 + 74) % 65537;
    }
    return $x;
}

function strings($n) {
    $text = '';
    for ($i = 0; $i < $n; $i++) {
        $text .= chr(65 + $i % 26);
        $text = str_replace('A', 'aa', $text);
    }
    return md5($text) . preg_replace_callback(
        '/[a-z]+/',
        function ($match) { return strtoupper($match[0]) . fib(3); },
        $text
    );
}

function numbers($n) {
    for ($i = 0; $i < $n; $i++) {
        try {
            if ($i % 7 == 3) {
                throw new \DomainException((string)$i);
            }
            yield fib(5) + $i;
        } catch (\DomainException $error) {
            yield (int)$error->getMessage()
                * 2;
        } finally {
            fib(2);
        }
    }
}

function delegate($n) { yield from numbers($n); yield fib(4); }

function delegate_deep($depth, $n) {
    if ($depth == 0) {
        yield from delegate($n);
    } else {
        yield from delegate_deep($depth - 1, $n);
    }
}

function descend($depth) {
    if ($depth == 0) {
        $shapes = array_map([Shape::class, 'of'], [9, 3, 7, 5]);
        usort($shapes, function (Area $a, Area $b) {
            return $a->area() <=> $b->area();
        });
        return array_reduce($shapes, function ($sum, $shape) { return $sum + $shape->scaled(); }, 0);
    }
    return descend($depth - 1) + 1;
}

function magic() {
    $square = new Square(6);
    $anonymous = new class(4) extends Shape {
        public function area(): int { return parent::area() + fib(3); }
    };
    $sum = $square->missing + $square->unknown(1, 2) + Square::unknown(3) + $square(2) + $square[3] + count($square);
    foreach ($square as $value) {
        $sum += $value;
    }
    return "$square $anonymous" . $sum . call_user_func_array([$square, 'area'], []);
}

function code($i) {
    $sum = eval('return \Shapes\fib(4) +
        \Shapes\fib(' . ($i % 5) . ');');
    return $sum + include __DIR__ . '/included.php';
}

spl_autoload_register(function ($class) {
    fib(6);
});

set_error_handler(function ($number, $message) {
    fib(4);
    return true;
});

function errors() {
    class_exists('Shapes\Missing' . mt_rand());
    trigger_error('warned');
    ob_start(function ($text) { return $text . fib(4); });
    echo 'text';
    return ob_get_clean();
}

function sum($values) {
    $sum = 0;
    foreach ($values as $value) {
        $sum += $value;
    }
    return $sum;
}

function in_fiber($n) {
    $sum = 0;
    for ($i = 0; $i < $n; $i++) {
        $sum += \Fiber::suspend(fib(5)) + sum(numbers(3));
    }
    return $sum;
}

function fibers() {
    if (PHP_VERSION_ID < 80100) {
        return;
    }
    $fiber = new \Fiber(function ($n) {
        return array_sum(array_map('Shapes\in_fiber', [$n, 2]));
    });
    $value = $fiber->start(4);
    while (!$fiber->isTerminated()) {
        $value = $fiber->resume($value + fib(5));
    }
}

function main() {
    // Stops the program: the library of the test has a function of its own.
    usleep(1);
    for ($i = 0; ; $i++) {
        sum(delegate(10));
        sum(delegate_deep(9, 10));
        descend(30);
        spin(2000);
        strings(40);
        magic();
        code($i);
        errors();
        fibers();
        $data = [];
        for ($j = 0; $j < 200; $j++) {
            $data["key $j"] = [$j, (string)$j];
        }
        array_walk($data, function (&$value, $key) { $value = serialize($value); });
    }
}

main();
