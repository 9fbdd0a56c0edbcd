// Diagrams and formulas, from files of this site alone.

// Diagrams fit a wide window. In a narrow one they keep their size and scroll, so that their text is readable.
function keepSizeOfDiagrams() {
  const initialize = mermaid.initialize;
  const useMaxWidth = !matchMedia("(max-width: 60em)").matches;
  mermaid.initialize = (config) =>
    initialize({
      ...config,
      flowchart: { ...config.flowchart, useMaxWidth },
      sequence: { ...config.sequence, useMaxWidth },
    });
}

// The theme would fetch Mermaid from the network. `document.write` loads this copy before the theme looks for it.
if (document.querySelector("pre.mermaid")) {
  const vendor = document.currentScript.src.replace(/site\.js.*$/, "vendor/");
  document.write(`<script src="${vendor}mermaid.tiny.js"><\/script><script>keepSizeOfDiagrams()<\/script>`);
}

document.addEventListener("DOMContentLoaded", () => {
  // The theme's search dialog has no name, and code that scrolls cannot be reached with the keyboard.
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  for (const code of document.querySelectorAll("pre > code")) code.tabIndex = 0;
  for (const formula of document.querySelectorAll(".arithmatex")) {
    renderMathInElement(formula, {
      delimiters: [
        { left: "\\(", right: "\\)", display: false },
        { left: "\\[", right: "\\]", display: true },
      ],
    });
  }
});
