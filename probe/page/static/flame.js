// A flame graph of the samples of `probe JOB flamegraph`, outermost frames on top; ranks side by side.

import { flame_samples } from "./ask.js";
import { canvas, colour } from "./chart.js";
import { duration, figure, fill, grid, h, save } from "./dom.js";

const SECONDS = 3, ROW = 17, DEEPEST = 256, NARROWEST = 0.5, MOST = 20;

export class Flame {
  constructor(page) {
    this.page = page;
    this.at = this.top = null;
    this.shown = h("div", {});
    this.button = h("button", { type: "button", on: { click: () => page.attempt(() => this.#sample()) } }, `Sample for ${SECONDS} s`);
    this.keep = h("button", { type: "button", hidden: true, on: { click: () => save(new Blob([this.text], { type: "application/json" }), "probe.speedscope.json") } }, "Save for speedscope");
    this.element = h("section", {}, h("h2", {}, "Flame graph"), h("div", { class: "row" }, this.button, this.keep,
      h("span", { class: "dim" }, "stacks of the training threads, sampled 100 times a second; waiting counts like computing")), this.shown);
  }

  async #sample() {
    this.button.disabled = true;
    fill(this.button, "sampling …");
    try {
      this.text = await flame_samples(this.page.job, SECONDS);
      if (!this.page.closed) this.#draw(JSON.parse(this.text));
    } finally {
      this.button.disabled = false;
      fill(this.button, `Sample for ${SECONDS} s`);
    }
  }

  #draw(file) {
    const root = merged(file), readout = h("output", { class: "dim", "aria-live": "polite" });
    let rows = [];
    this.top = this.at = root;
    const drawn = canvas((context, width) => {
      rows = laid_out(this.top, width);
      context.textBaseline = "middle";
      for (const { frame, left, wide, depth } of rows) {
        context.fillStyle = colour(`--c${hash(frame.name) % 6}`);
        context.globalAlpha = frame === this.at ? 0.75 : 0.3;
        context.fillRect(left, depth * ROW, Math.max(NARROWEST, wide - 0.5), ROW - 1);
        context.globalAlpha = 1;
        if (wide < 20) continue;
        context.save();
        context.beginPath();
        context.rect(left, depth * ROW, wide - 3, ROW);
        context.clip();
        context.fillStyle = colour("--text");
        context.fillText(frame.name, left + 3, depth * ROW + ROW / 2);
        context.restore();
      }
    }, { class: "flame", role: "img", tabindex: "0", "aria-label": `flame graph of ${file.name}: arrow keys move, Enter zooms to a frame, Escape shows all`, on: {
      pointermove: (event) => point(rows.find((one) => one.depth === Math.floor(event.offsetY / ROW) && event.offsetX >= one.left && event.offsetX < one.left + one.wide)?.frame),
      click: () => alone(this.at), dblclick: () => alone(root),
      keydown: (event) => {
        const beside = this.at.caller ? this.at.caller.calls : [this.at], place = beside.indexOf(this.at);
        const acts = { ArrowDown: () => point(this.at.calls[0]), ArrowUp: () => point(this.at === this.top ? this.at : this.at.caller), ArrowLeft: () => point(beside[place - 1]), ArrowRight: () => point(beside[place + 1]),
          Enter: () => alone(this.at), Escape: () => alone(root) };
        if (!acts[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        acts[event.key]();
      },
    } });
    const point = (frame) => {
      if (!frame) return;
      this.at = frame;
      fill(readout, `${frame.name}   ${duration(frame.s)}, ${figure(100 * frame.s / root.s)} % of all; ${duration(frame.own)} self`);
      drawn.redraw();
    };
    const alone = (frame) => { this.top = frame; point(frame); };
    const own = new Map(), add = (frame) => { own.set(frame.name, (own.get(frame.name) || 0) + frame.own); frame.calls.forEach(add); };
    add(root);
    fill(this.shown, h("figure", {}, h("figcaption", {}, file.name), readout, h("div", { class: "scroll" }, drawn)),
      h("details", {}, h("summary", {}, "functions with the most self time"),
        grid([["function"], ["time", true], ["share", true]], [...own].sort((one, other) => other[1] - one[1]).slice(0, MOST).map(([name, s]) => [h("code", {}, name), duration(s), `${figure(100 * s / root.s)} %`]), "functions")));
    this.keep.hidden = false;
    point(root);
  }
}

/** One tree of all profiles; if there are several, each is below a frame with its name. Frames beyond the deepest drawn one count for it. */
function merged(file) {
  const made = (name, caller) => ({ name, caller, calls: [], by: new Map(), s: 0, own: 0 }), root = made("all", null);
  for (const profile of file.profiles) {
    profile.samples.forEach((sample, place) => {
      const s = profile.weights[place], names = [...(file.profiles.length > 1 ? [profile.name] : []), ...sample.map((index) => file.shared.frames[index].name)].slice(0, DEEPEST);
      let frame = root;
      frame.s += s;
      for (const name of names) {
        if (!frame.by.has(name)) {
          frame.by.set(name, made(name, frame));
          frame.calls.push(frame.by.get(name));
        }
        frame = frame.by.get(name);
        frame.s += s;
      }
      frame.own += s;
    });
  }
  return root;
}

function laid_out(root, width) {
  const rows = [], waiting = [[root, 0, 0]];
  while (waiting.length) {
    const [frame, depth, left] = waiting.pop(), wide = width * frame.s / root.s;
    if (!(wide >= NARROWEST)) continue;
    rows.push({ frame, depth, left, wide });
    let from = left;
    for (const one of frame.calls) {
      waiting.push([one, depth + 1, from]);
      from += width * one.s / root.s;
    }
  }
  return rows;
}

function hash(text) {
  let found = 0;
  for (const letter of text) found = (found * 31 + letter.codePointAt(0)) % 65_521;
  return found;
}
