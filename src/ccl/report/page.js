// All that pages do beside being read: tables are sorted by a click on a column's name, and Escape closes a picture.
"use strict";
const missing = text => text === "" || text === "\u2013";
const number = text => {
  // "42.0 \u00b1 0.3", "+0.8", "< 0.001", "-1.2 to 3.4", "1.64\u00d7", "1,234", "641 s"; of "34 \u2192 36" the second.
  const found = text.split("\u2192").pop().trim().match(/^(?:< )?([+-]?[\d,]*\.?\d+)(?:$|[\s,\u00d7])/);
  return found ? Number(found[1].replaceAll(",", "")) : NaN;
};
const compare = (one, other) => {
  const [first, second] = [number(one), number(other)];
  return Number.isNaN(first) || Number.isNaN(second) ? one.localeCompare(other, "en", { numeric: true }) : first - second;
};
const sort = (table, place, heading) => {
  const textOf = row => row.cells[place].textContent.trim();
  const known = [...table.tBodies[0].rows].filter(row => !missing(textOf(row)));
  const others = [...table.tBodies[0].rows].filter(row => missing(textOf(row)));  // last, whichever way
  const isDown = heading.ariaSort ? heading.ariaSort === "ascending" : known.some(row => !Number.isNaN(number(textOf(row))));
  for (const one of table.tHead.rows[0].cells) one.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", isDown ? "descending" : "ascending");
  known.sort((one, other) => (isDown ? -1 : 1) * compare(textOf(one), textOf(other)));
  table.tBodies[0].append(...known, ...others);
};
for (const table of document.querySelectorAll("table")) {
  if (table.tBodies[0].rows.length < 2) continue;
  table.classList.add("sortable");
  [...table.tHead.rows[0].cells].forEach((heading, place) => {
    const button = document.createElement("button");
    button.append(...heading.childNodes);
    button.title = "Sort by this column";
    button.addEventListener("click", () => sort(table, place, heading));
    heading.append(button);
  });
}
addEventListener("keydown", event => {
  if (event.key === "Escape") document.querySelector("figure:target .close")?.click();
});
