// The page "Try it in the browser": every block of code of the class `cell` becomes a field to edit and run.
(() => {
  const NAMES = ["blocks", "sum", "fit", "constant", "r2", "print"];
  let blocks;

  function unpacked() {
    const { d_in, d_out, parts } = window.storedBlocks;
    const read = (text) => unpack(text, d_in, d_out);
    const sides = ({ number, train, test }) => ({ number, train: train.map(read), test: read(test) });
    return Object.fromEntries(Object.entries(parts).map(([name, part]) => [name, sides(part)]));
  }

  const shown = (value) => (typeof value === "number" && !Number.isInteger(value) ? value.toFixed(3) : String(value));

  function run(code, output, status) {
    const lines = [];
    const print = (...values) => lines.push(values.map(shown).join(" "));
    try {
      blocks ??= unpacked();
      // in braces, so that a reader's own `const sum = …` is no second declaration
      new Function(...NAMES, `"use strict"; {\n${code}\n}`)(structuredClone(blocks), sum, fit, constant, r2, print);
      status.textContent = lines.length ? "Done." : "Done. Nothing was printed: print(…) shows a value.";
      status.dataset.state = "done";
    } catch (error) {
      status.textContent = `Stopped: ${error.message}.`;
      status.dataset.state = "stopped";
    }
    output.textContent = lines.join("\n");
    output.hidden = !lines.length;
  }

  function element(name, properties) {
    return Object.assign(document.createElement(name), properties);
  }

  function cell(place, number) {
    const code = place.querySelector("pre").textContent.trimEnd();
    const field = element("textarea", { value: code, spellcheck: false, wrap: "off", rows: code.split("\n").length + 1 });
    field.setAttribute("autocapitalize", "off");
    field.setAttribute("aria-label", `Code of task ${number}; Control and Enter run it`);
    const start = element("button", { type: "button", textContent: "Run" });
    const reset = element("button", { type: "button", textContent: "As it was" });
    start.setAttribute("aria-label", `Run task ${number}`);
    reset.setAttribute("aria-label", `Task ${number} as it was`);
    const output = element("pre", { hidden: true, tabIndex: 0 });
    const status = element("p", { textContent: "Not run yet. Control and Enter run it too." });
    const heard = element("div", {}); // read out whole whenever a part of it changes
    heard.setAttribute("role", "status");
    heard.setAttribute("aria-label", `What task ${number} printed`);
    heard.append(output, status);

    start.addEventListener("click", () => run(field.value, output, status));
    reset.addEventListener("click", () => {
      field.value = code;
      field.focus();
    });
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      run(field.value, output, status);
    });
    const buttons = element("div", { className: "cell-buttons" });
    buttons.append(start, reset);
    place.className = "try-cell";
    place.replaceChildren(field, buttons, heard);
  }

  document.querySelectorAll("div.cell-to-run").forEach((place, i) => cell(place, i + 1));
})();
