// A tool chain: every script of a folder is parsed, walked, changed, printed, packed and hashed, over and over.
// node --expose-internals parse.js FOLDER
'use strict';
const { createHash } = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');
const util = require('node:util');
const vm = require('node:vm');
const zlib = require('node:zlib');
const acorn = require('internal/deps/acorn/acorn/dist/acorn');
const walk = require('internal/deps/acorn/acorn-walk/dist/walk');

function scripts(folder) {
  return fs.readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const name = path.join(folder, entry.name);
    return entry.isDirectory() ? scripts(name) : name.endsWith('.js') || name.endsWith('.json') ? [name] : [];
  });
}
function inspect(text) {
  const names = new Map();
  const tree = acorn.parse(text, { ecmaVersion: 'latest', allowHashBang: true, locations: true });
  walk.full(tree, (node) => {
    names.set(node.type, (names.get(node.type) ?? 0) + 1);
    if (node.type === 'TemplateElement' || node.type === 'Literal') String(node.raw).replace(/[^\w]+/gu, '-');
  });
  return [...names].sort(([a], [b]) => a.localeCompare(b));
}
function read(name) {
  const text = fs.readFileSync(name, 'utf8');
  if (name.endsWith('.json')) return util.inspect(structuredClone(JSON.parse(text)), { depth: 6 });
  const counts = inspect(text);
  new vm.Script(`(function (module, exports, require) {${text.replace(/^#!.*/, '')}\n})`, { filename: name });
  return util.format('%s %j %o', new URL(name, 'file://').href, Object.fromEntries(counts), counts.slice(0, 9));
}
const all = scripts(process.argv[2]);
for (;;) {
  for (const name of all) {
    try {
      const text = read(name);
      createHash('sha1').update(zlib.brotliCompressSync(text, { params: { [zlib.constants.BROTLI_PARAM_QUALITY]: 5 } }));
    } catch (error) {
      // Skips a script in a dialect that the parser does not know.
      if (!(error instanceof SyntaxError)) throw error;
    }
  }
}
