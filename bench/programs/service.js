// A small service: orders in JSON are read, priced, sorted, rendered and packed, over and over.
'use strict';
const { createHash } = require('node:crypto');
const zlib = require('node:zlib');

let seed = 1;
function below(end) {
  seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff;
  return seed % end;
}
function order(number) {
  const lines = Array.from({ length: 30 }, () => ({ sku: `sku-${below(5000)}`, count: 1 + below(8) }));
  return { number, customer: `customer ${number % 97}`, lines };
}
function price(line) {
  return line.count * createHash('sha256').update(line.sku).digest().readUInt16BE(0);
}
function render(read) {
  const name = read.customer.replace(/\b(\w)/g, (letter) => letter.toUpperCase());
  const rows = read.lines.map((line) => [line.sku, price(line)]).sort((a, b) => b[1] - a[1]);
  return [name, ...rows.map(([sku, cost]) => `${sku.padStart(12)} ${String(cost).padStart(8)}`)].join('\n');
}
for (let number = 0; ; number += 20) {
  const orders = Array.from({ length: 20 }, (_, i) => order(number + i));
  const read = JSON.parse(JSON.stringify(orders));
  zlib.gzipSync(read.map(render).join('\n'));
}
