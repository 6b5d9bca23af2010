<?php
// Works in known call paths in turn, for as many seconds as the argument says, or `seconds` of a request.
//
// Prints the functions of each path, leaf first, and for each round its start and the CPU time of each path's work.

$spent = [];
$names = [];
mt_srand(1);

function cpu_ns() {
    $usage = getrusage();
    $seconds = $usage['ru_utime.tv_sec'] + $usage['ru_stime.tv_sec'];
    return $seconds * 1000000000 + ($usage['ru_utime.tv_usec'] + $usage['ru_stime.tv_usec']) * 1000;
}

function spin($label) {
    global $spent;
    $begin = cpu_ns();
    $end = $begin + mt_rand(5000000, 40000000);
    $total = 0;
    while (cpu_ns() < $end) {
        for ($i = 0; $i < 1000; $i++) {
            $total = ($total + $i * $i) & 0xffffff;
        }
    }
    $spent[$label] = cpu_ns() - $begin;
}

// Since PHP 8.4, the name of a closure contains its place, which `__FUNCTION__` in the closure knows.
function remember($label, $name) {
    global $names;
    $names[$label] = $name;
}

function work_recursion() { spin('recursion'); }

function descend($depth, $work) {
    if ($depth) {
        descend($depth - 1, $work);
    } else {
        $work();
    }
}

function recursion() { descend(40, 'work_recursion'); }

function work_deep() { spin('deep'); }

function deep() { descend(900, 'work_deep'); }

function work_closure() { spin('closure'); }

class Worker {
    private $work;
    private $closure;
    function __construct($work) { $this->work = $work; }
    function method() {
        $this->closure = $this->closure ?: function () {
            remember('method', 'Worker::' . __FUNCTION__);
            ($this->work)();
        };
        ($this->closure)();
    }
    static function build($work) { return new Worker($work); }
    function __call($name, $arguments) { work_magic(); }
    function __toString() {
        work_cast();
        return '';
    }
}

function closure() {
    static $call = null;
    $worker = Worker::build('work_closure');
    $call = $call ?: function () use ($worker) {
        remember('closure', __FUNCTION__);
        $worker->method();
    };
    $call();
}

function work_generator() { spin('generator'); }

function numbers() {
    yield 1;
    work_generator();
    yield 2;
}

function delegate() { yield from numbers(); }

function generator() {
    foreach (delegate() as $number) {
    }
}

function work_fiber() { spin('fiber'); }

function in_fiber() {
    Fiber::suspend();
    work_fiber();
}

function fiber() {
    $fiber = new Fiber('in_fiber');
    $fiber->start();
    $fiber->resume();
}

function work_exception() { spin('exception'); }

function throws($depth) {
    if (!$depth) {
        throw new Exception();
    }
    try {
        throws($depth - 1);
    } finally {
        $depth = 0;
    }
}

function catches() {
    try {
        throws(20);
    } catch (Exception $exception) {
        work_exception();
    }
}

function exception() { catches(); }

function work_native() { spin('native'); }

function compare($left, $right) {
    work_native();
    return $left - $right;
}

function sorts($value) {
    $values = [2, 1];
    usort($values, 'compare');
    return $value;
}

function native() { array_map('sorts', [1]); }

function work_magic() { spin('magic'); }

function magic() { Worker::build('')->unknown(); }

function work_cast() { spin('cast'); }

function cast() { $text = 'text ' . Worker::build(''); }

function work_redefined_0() { spin('redefined_0'); }
function work_redefined_1() { spin('redefined_1'); }
function work_freed() { spin('freed'); }

// Functions of the last rounds. They are freed later than 250 ms after their last call, when their names are read.
$kept = [];

// Makes a function twenty times, and calls the last one. Later functions take the memory of earlier ones.
function evaluate($label) {
    $lines = $label == 'redefined_1' ? "\n\n" : '';
    for ($i = 0; $i < 20; $i++) {
        $function = eval("{$lines}return function () { remember('$label', __FUNCTION__); work_$label(); };");
    }
    $function();
    return $function;
}

function keep($function) {
    global $kept;
    $kept[] = $function;
    $kept = array_slice($kept, -6);
}

function redefined_0() { keep(evaluate('redefined_0')); }
function redefined_1() { keep(evaluate('redefined_1')); }

function freed() { evaluate('freed'); }

$between = [
    'recursion' => ['descend*41'],
    'deep' => ['descend*901'],
    'closure' => [],
    'generator' => ['numbers', 'delegate'],
    'exception' => ['catches'],
    'native' => ['compare', 'usort', 'sorts', 'array_map'],
    'magic' => ['Worker::__call'],
    'cast' => ['Worker::__toString'],
    'redefined_0' => ['evaluate'],
    'redefined_1' => ['evaluate'],
    'freed' => ['evaluate'],
];
if (class_exists('Fiber')) {
    $between['fiber'] = ['in_fiber', 'Fiber::resume'];
}

function main($seconds) {
    global $between, $spent, $names;
    $rounds = [];
    $until = microtime(true) + $seconds;
    while (microtime(true) < $until) {
        $begin = (int) (microtime(true) * 1e9);
        foreach ($between as $label => $functions) {
            $label();
        }
        $rounds[] = [$begin, $spent];
    }
    // The agent reads the last names while the program still runs.
    sleep(1);
    $between['closure'] = [$names['method'], 'Worker::method', $names['closure']];
    foreach (['redefined_0', 'redefined_1'] as $label) {
        array_unshift($between[$label], $names[$label]);
    }
    array_unshift($between['freed'], $names['freed'] . '?');
    echo "inner cpu_ns\ninner getrusage\n";
    foreach ($between as $label => $functions) {
        $stack = array_merge(['spin', "work_$label"], $functions, [$label, 'main', '{main}']);
        echo "case $label ", implode(';', $stack), "\n";
    }
    foreach ($rounds as list($begin, $cpu)) {
        $of_cases = array_map(function ($label) use ($cpu) { return $cpu[$label]; }, array_keys($between));
        echo "round $begin ", implode(' ', $of_cases), "\n";
    }
}

main((float) ($argv[1] ?? $_GET['seconds']));
