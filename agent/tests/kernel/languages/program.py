"""Works in known call paths in turn, for as many seconds as the argument says.

Prints the functions of each path, leaf first, and for each round its start and the CPU time of each path's work.
"""

import functools
import gc
import random
import sys
import threading
import time

SECONDS = float(sys.argv[1])
IS_QUALIFIED = (3, 11) <= sys.version_info
# Before Python 3.11, each call takes native frames too, of the 1,024 frames that the agent records.
DEPTH = 900 if IS_QUALIFIED else 200
cases = []
spent = {}
random.seed(1)


def name(qualified):
    """Returns the name that the agent shows for this version of Python."""
    return qualified if IS_QUALIFIED else qualified.rsplit(".", 1)[-1]


def case(*between):
    """Registers a path. `between` are the functions between its work and its first function, leaf first."""
    def register(function):
        label = function.__name__
        cases.append((label, function, ["spin", "work_" + label, *map(name, between), label, "main", "<module>"]))
        return function
    return register


def cpu_ns():
    return int(time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) * 1e9)


def spin(label):
    begin = cpu_ns()
    end = begin + 5000000 + int(35000000 * random.random())
    total = 0
    while cpu_ns() < end:
        for i in range(500):
            total += i * i
    spent[label] = cpu_ns() - begin


def work_recursion():
    spin("recursion")


def descend(depth, work):
    if depth:
        descend(depth - 1, work)
    else:
        work()


@case("descend*41")
def recursion():
    descend(40, work_recursion)


def work_deep():
    spin("deep")


@case("descend*%d" % (DEPTH + 1))
def deep():
    descend(DEPTH, work_deep)


def work_closure():
    spin("closure")


class Worker:
    def __init__(self, work):
        self.work = work

    def method(self):
        return (lambda: self.work())()


def enclose():
    worker = Worker(work_closure)

    def inner():
        worker.method()
    return inner


@case("Worker.method.<locals>.<lambda>", "Worker.method", "enclose.<locals>.inner")
def closure():
    enclose()()


def work_generator():
    spin("generator")


def numbers():
    yield 1
    work_generator()
    yield 2


def delegate():
    yield from numbers()


@case("numbers", "delegate")
def generator():
    for _ in delegate():
        pass


def work_coroutine():
    spin("coroutine")


class Step:
    def __await__(self):
        yield


async def inner_coroutine():
    await Step()
    work_coroutine()


async def outer_coroutine():
    await inner_coroutine()


@case("inner_coroutine", "outer_coroutine")
def coroutine():
    started = outer_coroutine()
    started.send(None)
    try:
        started.send(None)
    except StopIteration:
        pass


def work_exception():
    spin("exception")


def throw(depth):
    if depth == 0:
        raise ValueError
    try:
        throw(depth - 1)
    finally:
        depth = 0


def catch():
    try:
        throw(20)
    except ValueError:
        work_exception()


@case("catch")
def exception():
    catch()


def work_native():
    spin("native")


def compare(left, right):
    if left:
        work_native()
    return left - right


def reduce_by_sort(total, item):
    return sorted([0, item], key=functools.cmp_to_key(compare))


@case("compare", "reduce_by_sort")
def native():
    functools.reduce(reduce_by_sort, [0, 1])


def work_redefined_0():
    spin("redefined_0")


def work_redefined_1():
    spin("redefined_1")


def work_freed():
    spin("freed")


def redefine(function, work):
    """Makes a function twenty times, and calls the last one. Later functions take the memory of earlier ones."""
    functions = {"work": work}
    for _ in range(20):
        exec(compile("def %s(): work()" % function, "text", "exec"), functions)
    functions[function]()
    return functions


# Functions of the last rounds. They are freed later than 250 ms after their last call, when their names are read.
kept = []


def keep(functions):
    kept.append(functions)
    del kept[:-6]
    gc.collect()


@case("function_0", "redefine")
def redefined_0():
    keep(redefine("function_0", work_redefined_0))


@case("function_1", "redefine")
def redefined_1():
    keep(redefine("function_1", work_redefined_1))


@case("function_2?", "redefine")
def freed():
    redefine("function_2", work_freed)
    gc.collect()


def work_thread_0():
    spin("thread_0")


def work_thread_1():
    spin("thread_1")


def work_thread_2():
    spin("thread_2")


def work_thread_3():
    spin("thread_3")


THREADS = [work_thread_0, work_thread_1, work_thread_2, work_thread_3]
OF_THREADS = ["Thread.run", "Thread._bootstrap_inner", "Thread._bootstrap"]


def run_threads():
    threads = [threading.Thread(target=work) for work in THREADS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main():
    rounds = []
    until = time.time() + SECONDS
    while time.time() < until:
        begin = int(time.time() * 1e9)
        for _, function, _ in cases:
            function()
        run_threads()
        rounds.append((begin, spent.copy()))
    # The agent reads the last names while the program still runs.
    time.sleep(1)
    for work in THREADS:
        cases.append((work.__name__[5:], work, ["spin", work.__name__, *map(name, OF_THREADS)]))
    print("inner cpu_ns")
    for label, _, stack in cases:
        print("case", label, ";".join(stack))
    for begin, of_round in rounds:
        print("round", begin, *[of_round[label] for label, _, _ in cases])


main()
