/* Zoom, search and details of a flame graph, within its SVG file. Names of frames are data: they are read and
   written as text alone. Nothing is loaded, and without this script the graph is the same picture. */
(function () {
    "use strict";
    const SVG = "http://www.w3.org/2000/svg", XHTML = "http://www.w3.org/1999/xhtml";
    const graph = document.currentScript.closest("svg");
    const [left, inside, letter] = ["left", "inside", "letter"].map((name) => Number(graph.dataset[name]));
    const NARROWEST = 0.4, CLOSE = 0.02;
    const details = graph.querySelector(".details");

    const frames = Array.from(graph.querySelectorAll(".frame"), (group) => {
        const box = group.querySelector("rect");
        const [name, figures] = group.querySelector("title").textContent.split("\n");
        return {
            group, box, name, figures, words: group.querySelector("text"), calls: [], caller: null,
            depth: Number(group.dataset.depth), x: Number(box.getAttribute("x")),
            width: Number(box.getAttribute("width")), found: false, shown: true,
        };
    });
    for (const one of frames) {
        one.caller = frames[Number(one.group.dataset.caller)] || null;
        if (one.caller) one.caller.calls.push(one);
        one.group.setAttribute("role", "button");
        one.group.setAttribute("tabindex", "-1");
    }
    const [all] = frames;
    let chosen = all, zoomed = all;

    function place(one, x, width) {
        one.shown = width >= NARROWEST;
        one.group.style.display = one.shown ? "" : "none";
        if (!one.shown) return;
        one.box.setAttribute("x", x.toFixed(2));
        one.box.setAttribute("width", width.toFixed(2));
        const letters = Math.floor((width - 6) / letter);
        if (letters < 3) {
            if (one.words) one.words.textContent = "";
            return;
        }
        if (!one.words) {
            one.words = one.group.appendChild(document.createElementNS(SVG, "text"));
            one.words.setAttribute("y", Number(one.box.getAttribute("y")) + 12.5);
        }
        one.words.setAttribute("x", (x + 3).toFixed(2));
        one.words.textContent = one.name.length > letters ? one.name.slice(0, letters - 1) + "…" : one.name;
    }

    function zoom(to) {
        const above = new Set();
        for (let one = to.caller; one; one = one.caller) above.add(one);
        zoomed = to;
        for (const one of frames) {
            one.group.classList.toggle("above", above.has(one));
            const within = one.depth >= to.depth && one.x >= to.x - CLOSE
                && one.x + one.width <= to.x + to.width + CLOSE;
            if (above.has(one)) place(one, left, inside);
            else if (within) place(one, left + (one.x - to.x) / to.width * inside, one.width / to.width * inside);
            else place(one, 0, 0);
        }
        reset.style.display = to === all ? "none" : "";
        choose(to);
    }

    function choose(one) {
        chosen.group.setAttribute("tabindex", "-1");
        chosen = one;
        chosen.group.setAttribute("tabindex", "0");
        tell(one);
    }

    function tell(one) {
        details.textContent = `${one.name}: ${one.figures}`;
    }

    function beside(step) {
        const row = frames.filter((one) => one.shown && one.depth === chosen.depth).sort((a, b) => a.x - b.x);
        return row[row.indexOf(chosen) + step];
    }

    function widest(of) {
        return of.filter((one) => one.shown).sort((a, b) => b.width - a.width)[0];
    }

    function search(words) {
        const wanted = words.toLowerCase();
        let many = 0, width = 0;
        for (const one of frames) {
            one.found = wanted !== "" && one !== all && one.name.toLowerCase().includes(wanted);
            one.group.classList.toggle("found", one.found);
            many += one.found;
        }
        for (const one of frames) {
            let counted = !one.found;
            for (let up = one.caller; up && !counted; up = up.caller) counted = up.found;
            if (!counted) width += one.width;
        }
        const share = (100 * width / all.width).toFixed(1).replace(/\.0$/, "");
        details.textContent = wanted ? `${many} ${many === 1 ? "frame" : "frames"} found, ${share} % of the width` : "";
    }

    function nextFound() {
        const found = frames.filter((one) => one.found).sort((a, b) => a.depth - b.depth || a.x - b.x);
        const next = found[(found.indexOf(chosen) + 1) % found.length];
        if (!next) return;
        if (!next.shown) zoom(next);
        choose(next);
        next.group.focus();
    }

    const KEYS = {
        Enter: () => zoom(chosen), " ": () => zoom(chosen), Escape: () => zoom(all), Backspace: () => zoom(all),
        ArrowUp: () => chosen.caller, ArrowDown: () => widest(chosen.calls),
        ArrowLeft: () => beside(-1), ArrowRight: () => beside(1), Home: () => all, n: nextFound,
        "/": () => { field.focus(); },
    };

    const reset = graph.querySelector(".reset");
    reset.setAttribute("role", "button");
    reset.setAttribute("tabindex", "0");
    reset.addEventListener("click", () => zoom(all));

    const holder = graph.appendChild(document.createElementNS(SVG, "foreignObject"));
    for (const [name, value] of [["x", left + inside - 250], ["y", 4], ["width", 250], ["height", 26]]) {
        holder.setAttribute(name, value);
    }
    const field = holder.appendChild(document.createElementNS(XHTML, "input"));
    field.type = "search";
    field.placeholder = "search frames  ( / )";
    field.setAttribute("aria-label", "search frames");
    field.addEventListener("input", () => search(field.value));
    field.addEventListener("keydown", (event) => {
        event.stopPropagation();
        if (event.key === "Enter") nextFound();
        if (event.key === "Escape") {
            field.value = "";
            search("");
            chosen.group.focus();
        }
    });

    for (const one of frames) {
        one.group.addEventListener("click", () => zoom(one));
        one.group.addEventListener("mouseenter", () => tell(one));
        one.group.addEventListener("focus", () => choose(one));
    }
    graph.addEventListener("keydown", (event) => {
        const act = KEYS[event.key];
        if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        if (event.target === reset && (event.key === "Enter" || event.key === " ")) {
            zoom(all);
            return;
        }
        const to = act();
        if (to) {
            choose(to);
            to.group.focus();
        }
    });
    zoom(all);
    details.textContent = details.dataset.keys;
})();
