// Diagrams and formulas, of files of this site alone.

// The theme would fetch Mermaid from the network. `document.write` loads this copy before the theme looks for it.
if (document.querySelector("pre.mermaid")) {
  const vendor = document.currentScript.src.replace(/site\.js.*$/, "vendor/");
  document.write(`<script src="${vendor}mermaid.tiny.js"><\/script>`);
}

document.addEventListener("DOMContentLoaded", () => {
  for (const formula of document.querySelectorAll(".arithmatex")) {
    renderMathInElement(formula, {
      delimiters: [
        { left: "\\(", right: "\\)", display: false },
        { left: "\\[", right: "\\]", display: true },
      ],
    });
  }
});
