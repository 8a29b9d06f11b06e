// The interactive page: it draws the numbers of its own table, and the points that are stored of some models.
{
  const explorer = document.getElementById("explorer");
  const controls = explorer.querySelector("form");
  const [profile, cloud] = [".explorer-profile", ".explorer-cloud"].map((name) => explorer.querySelector(name));
  const clouds = JSON.parse(document.getElementById("explorer-clouds").textContent);
  const CHOICES = ["model", "corpus", "protocol", "cut", "block"];
  const KEPT = 5; // in median norms: rows beyond it are drawn as massive ones, whatever the cut

  // one entry for every number in the table
  const entries = [...explorer.querySelectorAll("td[data-cut]")].map((cell) => {
    const { low, high, cut } = cell.dataset;
    const ends = low === undefined ? null : [Number(low), Number(high)];
    return { cell, ...cell.parentElement.dataset, cut, r2: Number(cell.textContent), ends };
  });
  const measured = (wanted) =>
    entries.filter((entry) => Object.entries(wanted).every(([name, value]) => entry[name] === value));

  // From the first control to the last: only what was measured for what stands before it can be chosen.
  function allow() {
    let left = entries;
    for (const name of CHOICES) {
      const select = controls.elements[name];
      const there = new Set(left.map((entry) => entry[name]));
      for (const option of select.options) {
        option.disabled = !there.has(option.value);
        option.hidden = option.disabled && name !== "protocol" && name !== "cut";
      }
      if (!there.has(select.value)) select.value = [...select.options].find((option) => there.has(option.value)).value;
      left = left.filter((entry) => entry[name] === select.value);
    }
  }

  function element(name, attributes, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  // Round numbers from `low` to `high`, five or so.
  function ticks(low, high, whole = false) {
    const rough = (high - low) / 5 || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(whole ? 1 : 0, power * [1, 2, 5, 10].find((times) => times * power >= rough));
    const first = Math.ceil(low / step - 1e-9);
    const count = Math.floor(high / step + 1e-9) - first + 1;
    return Array.from({ length: count }, (_, i) => Number(((first + i) * step).toPrecision(6)));
  }

  const say = (value, digits = 3) => value.toFixed(digits).replace("-", "−");

  // Axes with their words; what places a value of either, and the drawing.
  function axes(place, height, x, y, label) {
    const width = Math.max(place.clientWidth, 200);
    const [left, right, top, bottom] = [52, 12, 10, 44];
    const across = (value) => left + ((value - x.low) / (x.high - x.low)) * (width - left - right);
    const up = (value) => height - bottom - ((value - y.low) / (y.high - y.low)) * (height - top - bottom);
    const drawing = element("svg", { width, height, role: "img", "aria-label": label });
    const write = (text, where, anchor = "middle") =>
      drawing.append(element("text", { "text-anchor": anchor, ...where }, text));
    for (const tick of ticks(y.low, y.high)) {
      drawing.append(element("line", { x1: left, x2: width - right, y1: up(tick), y2: up(tick), class: "grid" }));
      write(String(tick).replace("-", "−"), { x: left - 8, y: up(tick) + 4 }, "end");
    }
    for (const tick of ticks(x.low, x.high, x.whole))
      write(String(tick).replace("-", "−"), { x: across(tick), y: height - bottom + 18 });
    write(x.title, { x: (left + width - right) / 2, y: height - 6 });
    write(y.title, { transform: `translate(12 ${(top + height - bottom) / 2}) rotate(-90)` });
    place.replaceChildren(drawing);
    return { drawing, across, up };
  }

  function drawProfile(shown, usual, now) {
    const values = [...shown, ...usual].flatMap((entry) => [entry.r2, ...(entry.ends ?? [])]);
    const blocks = usual.concat(shown).map((entry) => Number(entry.block));
    const x = { low: Math.min(...blocks) - 0.4, high: Math.max(...blocks) + 0.4, title: "block", whole: true };
    const y = { low: Math.min(0, ...values), high: Math.max(1, ...values), title: "R²_lin" };
    const label = `R²_lin of ${now.model} by block; the table has the numbers`;
    const { drawing, across, up } = axes(profile, 300, x, y, label);
    const path = (line) => line.map((entry, i) => `${i ? "L" : "M"}${across(entry.block)} ${up(entry.r2)}`).join("");
    drawing.append(element("path", { d: path(usual), class: "usual dashed" }));
    drawing.append(element("path", { d: path(shown), class: "chosen" }));
    for (const entry of usual) {
      const [cx, cy] = [across(entry.block), up(entry.r2)];
      drawing.append(element("rect", { x: cx - 4, y: cy - 4, width: 8, height: 8, class: "usual" }));
    }
    for (const entry of shown) {
      const [cx, cy] = [across(entry.block), up(entry.r2)];
      const [low, high] = (entry.ends ?? [entry.r2, entry.r2]).map(up);
      drawing.append(element("path", { d: `M${cx} ${low}V${high}`, class: "chosen" }));
      drawing.append(element("circle", { cx, cy, r: 4, class: "chosen filled" }));
      if (entry.block === now.block) drawing.append(element("circle", { cx, cy, r: 9, class: "ring" }));
      const around = { x: cx - 10, y: 0, width: 20, height: 260 };
      const target = element("rect", { ...around, class: "target", "data-block": entry.block });
      target.append(element("title", {}, `block ${entry.block}: ${say(entry.r2)}`));
      target.addEventListener("click", () => {
        controls.elements.block.value = entry.block;
        draw();
      });
      drawing.append(target);
    }
  }

  function drawCloud(now) {
    const stored = clouds[now.model]?.[now.corpus]?.[now.block];
    const caption = cloud.parentElement.querySelector("figcaption");
    if (!stored) {
      caption.textContent = `The book keeps rows of ${now.model} on its main text alone.`;
      cloud.replaceChildren();
      return;
    }
    const { points, share } = stored;
    const limit = { all: Infinity, first: Infinity }[now.cut] ?? Number(now.cut);
    const massive = points.filter((point) => point[2] > KEPT).length;
    const leftOut = points.filter((point) => point[2] > limit).length;
    const beyond = `rows beyond ${KEPT} × the median norm`;
    caption.textContent =
      `Held-out rows of block ${now.block}: what it writes against what the map fitted to all rows answers, along the ` +
      `direction in which its outputs vary most (${say(100 * share, 0)} % of their variance). On the diagonal the map is ` +
      (massive ? `right. Diamonds: the ${massive} heaviest of the ${beyond}; hollow: ${leftOut} beyond the cut.` : `right. There are no ${beyond}.`);
    const all = points.flatMap(([answer, output]) => [answer, output]);
    const [low, high] = [Math.min(...all), Math.max(...all)];
    const title = (what) => `${what} (standard deviations)`;
    const x = { low, high, title: title("the map's answer") };
    const { drawing, across, up } = axes(cloud, 340, x, { low, high, title: title("output") }, caption.textContent);
    drawing.append(element("path", { d: `M${across(low)} ${up(low)}L${across(high)} ${up(high)}`, class: "usual dashed" }));
    for (const [answer, output, medians] of points) {
      const [cx, cy] = [across(answer), up(output)];
      if (medians <= KEPT) drawing.append(element("circle", { cx, cy, r: 2.5, class: "point" }));
      else {
        const look = medians > limit ? "massive" : "massive filled";
        drawing.append(element("path", { d: `M${cx} ${cy - 6}l6 6l-6 6l-6 -6z`, class: look }));
      }
    }
  }

  function draw() {
    allow();
    const now = Object.fromEntries(CHOICES.map((name) => [name, controls.elements[name].value]));
    const { block, ...everyBlock } = now;
    const ours = { ...everyBlock, protocol: "ours", cut: "all" };
    const [[here], [before]] = [measured(now), measured({ ...ours, block })];
    const interval = ({ ends }) => (ends ? ` [${say(ends[0])}, ${say(ends[1])}]` : "");
    const change = here.r2 - before.r2;
    const words = `${now.model}, block ${block}, on ${now.corpus}: R²_lin ${say(before.r2)}${interval(before)} of all rows by our protocol`;
    const asChosen = `as chosen ${say(here.r2)}${interval(here)}, a change of ${change < 0 ? "" : "+"}${say(change)}`;
    explorer.querySelector("output").textContent = here === before ? `${words}.` : `${words}; ${asChosen}.`;
    drawProfile(measured(everyBlock), measured(ours), now);
    drawCloud(now);
    for (const entry of entries) entry.cell.classList.toggle("chosen", entry === here);
    for (const row of explorer.querySelectorAll("tbody tr"))
      row.hidden = ["model", "corpus", "protocol"].some((name) => row.dataset[name] !== now[name]);
    window.explorer = now;
  }

  for (const hidden of [controls, ...explorer.querySelectorAll("figure")]) hidden.hidden = false;
  controls.addEventListener("submit", (event) => event.preventDefault());
  controls.addEventListener("change", draw);
  draw();
  let width = explorer.clientWidth;
  new ResizeObserver(() => {
    if (Math.abs(explorer.clientWidth - width) < 2) return;
    width = explorer.clientWidth;
    draw();
  }).observe(explorer);
}
