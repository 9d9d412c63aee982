// Interactive parts of the page: colours, charts (drawn when they come near the window) and tables.
const root = document.documentElement;
const button = document.getElementById("theme");
const specs = JSON.parse(document.getElementById("charts").textContent);
const drawn = new Set();

function themedSpec(spec, width) {
  const dark = root.classList.contains("dark");
  const [ink, edge] = dark ? ["#ececec", "#454a52"] : ["#1a1a1a", "#d8d8d8"];
  // Baselines are black and one method is nearly black: both would be invisible on a dark page.
  const colours = { "#000000": ink, ...(dark && { "#882255": "#cc6699" }) };
  const own = JSON.parse(JSON.stringify(spec).replace(/#[0-9a-f]{6}/g, (colour) => colours[colour] ?? colour));
  const axis = { labelColor: ink, titleColor: ink, domainColor: ink, tickColor: ink, gridColor: edge };
  own.config = {
    background: null, axis, legend: { labelColor: ink, titleColor: ink, columns: Math.max(1, Math.floor((width - 60) / 150)) }, text: { color: ink },
    view: { stroke: edge }, font: "system-ui, sans-serif",
  };
  return own;
}

async function draw(place) {
  drawn.add(place);
  const actions = { export: true, source: false, compiled: false, editor: false };
  const options = { mode: "vega-lite", renderer: "svg", actions, tooltip: { theme: root.classList.contains("dark") ? "dark" : "light" } };
  const { view } = await window.vegaEmbed(place, themedSpec(specs[Number(place.dataset.chart)], place.clientWidth), options);
  place.dataset.drawn = "yes";
  const copy = place.parentElement.querySelector(".copy");
  copy.hidden = false;
  copy.onclick = () => copyImage(view).then(() => "Copied", () => "Not copied. Use the menu of the chart.").then((status) => {
    copy.textContent = status;
  });
}

// Copies a PNG at twice the size, with the background of the page.
async function copyImage(view) {
  const canvas = await view.toCanvas(2);
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.globalCompositeOperation = "destination-over";
  context.fillStyle = getComputedStyle(document.body).backgroundColor;
  context.fillRect(0, 0, canvas.width, canvas.height);
  const image = await new Promise((done) => canvas.toBlob(done, "image/png"));
  await navigator.clipboard.write([new ClipboardItem({ "image/png": image })]);
}

function setTheme(dark) {
  root.classList.toggle("dark", dark);
  button.setAttribute("aria-pressed", String(dark));
  for (const place of drawn) draw(place);
}

const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
setTheme(prefersDark.matches);
prefersDark.addEventListener("change", () => setTheme(prefersDark.matches));
button.addEventListener("click", () => setTheme(!root.classList.contains("dark")));

// Space sorts by a heading, like Enter, instead of scrolling the page.
document.addEventListener("keydown", (event) => {
  if (event.key !== " " || !event.target.closest("table.dataTable thead")) return;
  event.preventDefault();
  event.target.click();
});

// Elements far from the window wait, so that a page with hundreds of runs opens fast.
function whenNear(elements, act) {
  const watcher = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) {
      if (!isIntersecting) continue;
      watcher.unobserve(target);
      act(target);
    }
  }, { rootMargin: "300px" });
  for (const element of elements) watcher.observe(element);
}

// Marks tables that are wider than their container: phones show no scroll bar.
const measured = new ResizeObserver((seen) => {
  for (const { target } of seen) {
    const place = target.closest(".scrolls");
    place.toggleAttribute("data-more", place.scrollWidth > place.clientWidth + 1);
  }
});

function measure(table, place) {
  place.classList.add("scrolls");
  measured.observe(place);
  measured.observe(table);
}

function activate(table) {
  const large = table.tBodies[0].rows.length > 25;
  new window.DataTable(table, {
    order: [], autoWidth: false, paging: large, pageLength: 25, info: large, language: { search: "Filter" },
    layout: {
      topStart: "search", topEnd: large ? "pageLength" : null,
      bottomStart: large ? "info" : null, bottomEnd: large ? "paging" : null,
    },
  });
  // The inner element scrolls now, so it must receive the focus for arrow keys.
  const outer = table.closest(".wide");
  const inner = table.closest(".dt-layout-cell");
  const focused = document.activeElement === outer;
  for (const name of ["tabindex", "role", "aria-label"]) {
    inner.setAttribute(name, outer.getAttribute(name));
    outer.removeAttribute(name);
  }
  if (focused) inner.focus({ preventScroll: true });
  measure(table, inner);
}

const places = [...document.querySelectorAll("[data-chart]")];
whenNear(places, draw);
whenNear(document.querySelectorAll("table.live"), activate);
whenNear(document.querySelectorAll("table:not(.live)"), (table) => measure(table, table.closest(".wide")));
window.addEventListener("beforeprint", () => places.filter((place) => !drawn.has(place)).forEach(draw));
root.dataset.ready = "yes";
