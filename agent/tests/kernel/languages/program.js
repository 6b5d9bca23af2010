// Works in known call paths in turn, for as many seconds as the argument says.
//
// Prints the functions of each path, leaf first, and for each round its start and the CPU time of each path's work.
'use strict';
const { Worker, isMainThread, workerData } = require('worker_threads');

const MAJOR = parseInt(process.versions.node, 10);
const spent = {};
let seed = 1;

// Returns the CPU time in nanoseconds: of the thread if this version can tell it, or else of the process.
function cpuNs() {
  const usage = process.threadCpuUsage ? process.threadCpuUsage() : process.cpuUsage();
  return (usage.user + usage.system) * 1000;
}

function randomNs() {
  seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
  return 5e6 + (seed / 4294967296) * 35e6;
}

function spin(label) {
  const begin = cpuNs();
  const end = begin + randomNs();
  let total = 0;
  while (cpuNs() < end) {
    for (let i = 0; i < 20000; i++) {
      total = (total + Math.imul(i, i)) | 0;
    }
  }
  spent[label] = cpuNs() - begin;
  return total;
}

function workRecursion() { return spin('recursion') + 1; }

function descend(depth, work) {
  if (depth) {
    return descend(depth - 1, work) + 1;
  }
  return work() + 1;
}

function recursion() { return descend(40, workRecursion) + 1; }

function workDeep() { return spin('deep') + 1; }

function deep() { return descend(DEPTH, workDeep) + 1; }

function workClosure() { return spin('closure') + 1; }

class Box {
  constructor(work) { this.work = work; }
  method() {
    const arrow = () => this.work() + 1;
    return arrow() + 1;
  }
}

function enclose() {
  const box = new Box(workClosure);
  return function enclosed() { return box.method() + 1; };
}

function closure() { return enclose()() + 1; }

function workGenerator() { return spin('generator') + 1; }

function* numbers() {
  yield 1;
  yield workGenerator();
}

function* delegate() { yield* numbers(); }

function generator() {
  let total = 0;
  for (const number of delegate()) {
    total += number;
  }
  return total;
}

function workAwait() { return spin('awaiting') + 1; }

async function awaited() {
  await null;
  return workAwait() + 1;
}

async function awaiting() { return (await awaited()) + 1; }

function workException() { return spin('exception') + 1; }

function throws(depth) {
  if (depth === 0) {
    throw new Error('thrown');
  }
  try {
    return throws(depth - 1) + 1;
  } finally {
    depth = 0;
  }
}

function catches() {
  try {
    return throws(20) + 1;
  } catch (error) {
    return workException() + 1;
  }
}

function exception() { return catches() + 1; }

function workNative() { return spin('native') + 1; }

function compare(left, right) {
  workNative();
  return left - right;
}

function sorts(value) { return [2, 1].sort(compare)[0] + value; }

function replaces() { return 'a'.replace(/a/, function replacement(text) { return sorts(1) + text; }).length; }

// In Node.js 12, stacks end at a function that is called for a regular expression.
const REPLACES = 14 <= MAJOR;

function native() {
  let total = 0;
  [1].forEach(function each() { total += REPLACES ? replaces() : sorts(1); });
  return total;
}

function workConverted() { return spin('converted') + 1; }

const convertible = { toJSON() { return workConverted() + 1; } };

function converted() { return JSON.stringify(convertible).length; }

class Square { area(side) { return side * side; } }
class Circle { area(side) { return side * side * 3.14; } }
class Text { area(side) { return side + 'x'; } }
class Big { area(side) { return BigInt(side); } }

// The text of the work, so that each round has new functions: they are optimized, and deoptimized by each new class.
const CHANGING = `(function workChanging(begin, end, cpuNs, shapes) {
  function measure(shape, side) { return shape.area(side); }
  let total = 0;
  for (let kind = 0; kind < shapes.length; kind++) {
    const until = begin + ((end - begin) * (kind + 1)) / shapes.length;
    while (cpuNs() < until) {
      for (let i = 0; i < 5000; i++) {
        total = measure(shapes[kind], i) === total ? i : total;
      }
    }
  }
  return total;
})`;
const shapes = [new Square(), new Circle(), new Text(), new Big()];

function changed() {
  const work = (0, eval)(CHANGING);
  const begin = cpuNs();
  work(begin, begin + randomNs(), cpuNs, shapes);
  spent.changing = cpuNs() - begin;
}

function changing() { changed(); return 1; }

function workRedefined0() { return spin('redefined0') + 1; }
function workRedefined1() { return spin('redefined1') + 1; }
function workFreed() { return spin('freed') + 1; }

// Functions of the last rounds. They are freed later than 250 ms after their last call, when their names are read.
const kept = [];

// Makes a function twenty times, and calls the last one. Later functions take the memory of earlier ones. The collector
// moves functions that were just made, so it runs before the call.
function redefine(name, work) {
  let made;
  for (let i = 0; i < 20; i++) {
    made = new Function('work', `return function ${name}() { return work() + ${i}; }`)(work);
  }
  gc();
  made();
  return made;
}

function keep(made) {
  kept.push(made);
  return kept.splice(0, kept.length - 6).length;
}

function redefined0() { return keep(redefine('function0', workRedefined0)); }
function redefined1() { return keep(redefine('function1', workRedefined1)); }

function freed() {
  redefine('function2', workFreed);
  gc();
  return 1;
}

function workThread() { return spin('thread') + 1; }

// Works once for each message.
function serve() {
  workThread();
  require('worker_threads').parentPort.postMessage(spent.thread);
}

// Runs one piece of work in each thread. If only the clock of the process is known, each ends at its own time, and the
// CPU time of all is that of the process.
async function threads(workers) {
  const begin = cpuNs();
  const answer = (worker) => new Promise((resolve) => worker.once('message', resolve));
  const answers = workers.map(answer);
  workers.forEach((worker) => worker.postMessage(0));
  const parts = await Promise.all(answers);
  spent.thread = process.threadCpuUsage ? parts.reduce((sum, part) => sum + part, 0) : cpuNs() - begin;
}

// Before Node.js 16, functions remain interpreted here. Each takes a native frame, too, of the 1,024 frames that the
// agent records.
const DEPTH = 16 <= MAJOR ? 900 : 400;
const CASES = {
  recursion: [recursion, 'workRecursion', 'descend*41'],
  deep: [deep, 'workDeep', `descend*${DEPTH + 1}`],
  closure: [closure, 'workClosure', 'arrow', 'method', 'enclosed'],
  generator: [generator, 'workGenerator', 'numbers', 'delegate'],
  exception: [exception, 'workException', 'catches'],
  native: [native, 'workNative', 'compare', 'sorts', ...(REPLACES ? ['replacement', 'replaces'] : []), 'each'],
  converted: [converted, 'workConverted', 'toJSON'],
  freed: [freed, 'workFreed', 'function2?', 'redefine'],
  redefined0: [redefined0, 'workRedefined0', 'function0?', 'redefine'],
  redefined1: [redefined1, 'workRedefined1', 'function1?', 'redefine'],
};

async function main() {
  const workers = [0, 1, 2, 3].map((thread) => new Worker(__filename, { workerData: thread }));
  await null;
  const rounds = [];
  const until = Date.now() + 1000 * Number(process.argv[2]);
  while (Date.now() < until) {
    const begin = Date.now() * 1000000;
    for (const label in CASES) {
      CASES[label][0]();
    }
    await awaiting();
    changing();
    await threads(workers);
    rounds.push([begin, { ...spent }]);
  }
  // The agent reads the last names while the program still runs.
  await new Promise((resolve) => setTimeout(resolve, 1000));
  workers.forEach((worker) => worker.terminate());
  console.log('inner cpuNs\ninner randomNs\ninner measure\ninner area');
  const labels = Object.keys(CASES);
  for (const label of labels) {
    console.log(`case ${label} ${['spin', ...CASES[label].slice(1), label, 'main'].join(';')}`);
  }
  console.log('case awaiting spin;workAwait;awaited');
  console.log('case changing workChanging;changed;changing;main');
  console.log('case thread spin;workThread;serve');
  labels.push('awaiting', 'changing', 'thread');
  for (const [begin, cpu] of rounds) {
    console.log('round', begin, ...labels.map((label) => Math.round(cpu[label])));
  }
}

if (isMainThread) {
  main();
} else {
  seed = workerData + 7;
  require('worker_threads').parentPort.on('message', serve);
}
