// What of the page moves: its colours, its charts (drawn when they are about to be seen) and its tables.
const root = document.documentElement;
const button = document.getElementById("theme");
const specs = JSON.parse(document.getElementById("charts").textContent);
const drawn = new Set();

function dressed(spec, width) {
  const dark = root.classList.contains("dark");
  const [ink, edge] = dark ? ["#ececec", "#454a52"] : ["#1a1a1a", "#d8d8d8"];
  // Floor and ceiling are black, and one method nearly is: on a dark page they would not be seen.
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
  const { view } = await window.vegaEmbed(place, dressed(specs[Number(place.dataset.chart)], place.clientWidth), options);
  place.dataset.drawn = "yes";
  const copy = place.parentElement.querySelector(".copy");
  copy.hidden = false;
  copy.onclick = () => copied(view).then(() => "Copied", () => "Not copied: save it by the menu of the chart").then((said) => {
    copy.textContent = said;
  });
}

// A PNG of twice the size, on the paper of the page, for a slide.
async function copied(view) {
  const canvas = await view.toCanvas(2);
  const ground = canvas.getContext("2d");
  ground.setTransform(1, 0, 0, 1, 0, 0);
  ground.globalCompositeOperation = "destination-over";
  ground.fillStyle = getComputedStyle(document.body).backgroundColor;
  ground.fillRect(0, 0, canvas.width, canvas.height);
  const image = await new Promise((done) => canvas.toBlob(done, "image/png"));
  await navigator.clipboard.write([new ClipboardItem({ "image/png": image })]);
}

function dress(dark) {
  root.classList.toggle("dark", dark);
  button.setAttribute("aria-pressed", String(dark));
  for (const place of drawn) draw(place);
}

const wish = window.matchMedia("(prefers-color-scheme: dark)");
dress(wish.matches);
wish.addEventListener("change", () => dress(wish.matches));
button.addEventListener("click", () => dress(!root.classList.contains("dark")));

// Headings sort with Enter; with Space, too, which would scroll the page.
document.addEventListener("keydown", (event) => {
  if (event.key !== " " || !event.target.closest("table.dataTable thead")) return;
  event.preventDefault();
  event.target.click();
});

// What is far from the window waits: hundreds of runs open as fast as two.
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

// A table that is wider than its place says so: on a phone nothing else does.
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

function enliven(table) {
  const large = table.tBodies[0].rows.length > 25;
  new window.DataTable(table, {
    order: [], autoWidth: false, paging: large, pageLength: 25, info: large, language: { search: "Filter" },
    layout: {
      topStart: "search", topEnd: large ? "pageLength" : null,
      bottomStart: large ? "info" : null, bottomEnd: large ? "paging" : null,
    },
  });
  // What scrolls now lies further in: arrow keys have to reach it.
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
whenNear(document.querySelectorAll("table.live"), enliven);
whenNear(document.querySelectorAll("table:not(.live)"), (table) => measure(table, table.closest(".wide")));
window.addEventListener("beforeprint", () => places.filter((place) => !drawn.has(place)).forEach(draw));
root.dataset.ready = "yes";
