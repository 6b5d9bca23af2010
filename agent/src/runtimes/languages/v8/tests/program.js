'use strict';
// A program that is busy in all kinds of functions. Now and then, it writes its stack to the file that is its first
// argument, and stops at a signal in the same line.
const fs = require('fs');
const vm = require('vm');
Error.stackTraceLimit = 1000;
const target = process.argv[2];
let seed = Number(process.argv[3]) || 1;
let wait = 5;

function visit() {
  if (--wait < 0) {
    seed = (seed * 1103515245 + 12345) & 0x3fffffff;
    wait = (seed >> 8) % 20000;
    report();
  }
  return 1;
}

function report() {
  fs.writeFileSync(target, new Error('here').stack); process.kill(process.pid, 'SIGTRAP');
}

function add(a, b) { visit(); return a + b; }
function inlined(x) {
  const y = x + 1;
  return add(y,
    x) + visit();
}
function sum(n) {
  let total = 0;
  for (let i = 0; i < n; i++) {
    total = (total + inlined(i)) | 0;
    if (i % 50 === 49) {
      total += visit();
    }
  }
  return total;
}

class Shape {
  constructor(width) { this.width = checked(width); }
  get area() { return this.scaled(visit() + this.width); }
  set area(value) { this.width = checked(value); }
  scaled(by) { return add(this.width, by); }
  static of(width) { return new Shape(width).area; }
  toJSON() { return checked(this.width) + ''; }
  [Symbol.toPrimitive]() { return visit() + this.width; }
}
class Square extends Shape {
  constructor(width) {
    super(width);
    this.area = width;
  }
  scaled(by) { return super.scaled(by) + visit(); }
}
function checked(value) { return [value].map(function (each) { visit(); return each * 2; })[0]; }

function sorted(n) {
  const numbers = [];
  for (let i = 0; i < n; i++) numbers.push((i * 7919) % 1000);
  return numbers.sort((a, b) => { visit(); return a - b; }).filter((x) => x & visit()).length;
}
function texts(n) {
  let text = '';
  for (let i = 0; i < n; i++) text += 'abc'.replace(/b/g, (found) => { visit(); return found + i; });
  return text.length + JSON.stringify([new Shape(3), new Square(2)]).length;
}
function* numbers(n) { for (let i = 0; i < n; i++) { yield visit() + i; } }
function generated(n) { let s = 0; for (const x of numbers(n)) s += x; return s; }
function descend(depth) { return depth === 0 ? sum(30) : descend(depth - 1) + visit(); }
function caught(n) {
  let count = 0;
  for (let i = 0; i < n; i++) {
    try { if (i % 3 === 0) throw visit(); count++; } catch (error) { count += visit(); } finally { visit(); }
  }
  return count;
}
const proxied = new Proxy({}, { get(object, key) { return visit() + key.length; } });
const byEval = eval('(function byEval(f) {\n return f() + visit(); })');
const byFunction = new Function('f', '\n return f();');
const place = { filename: '/vm/file.js', lineOffset: 100 };
const inVm = vm.runInThisContext('\n(function inVm(f) {\n return f(); })', place);
const withUrl = (0, eval)('(function withUrl(f) { return f(); })\n//# sourceURL=named.js');
const nested = { a: {} };
nested.a.b = function () { return withUrl(() => visit()) + proxied.key; };
function applied() { return Reflect.apply(bound, null, [1]); }
const bound = (function target(n) { return nested.a.b() + n; }).bind(null, 2);
function spread(...all) { return all.length + inVm(() => byFunction(() => byEval(visit))) + applied(); }
function many(n) {
  let s = 0;
  for (let i = 0; i < n; i++) { s += spread(i, i); new Map([[1, 2]]).forEach((v) => visit()); }
  return s;
}
const wide = { 'quoted – name'() { return Array.from([1, 2], (each) => add(each, visit()) + `${new Shape(1)}`); } };

async function later(n) {
  await null;
  sum(n);
  await visit();
  return add(n, 1);
}
function round(n) {
  sum(200); sorted(60); texts(20); generated(100); descend(n % 30); caught(20); many(10);
  Shape.of(3); new Square(2).area; wide['quoted – name']();
}
let rounds = 0;
function loop() {
  round(rounds++);
  later(20).then(function after() { visit(); setImmediate(loop); });
}
loop();
