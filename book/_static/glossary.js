// Escape closes a definition that the pointer or the keyboard has opened, until its word is left. Opening needs no script.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const word of document.querySelectorAll(".glossed:is(:hover, :focus-within)")) {
    word.dataset.closed = "yes";
    for (const leaving of ["pointerleave", "focusout"])
      word.addEventListener(leaving, () => delete word.dataset.closed, { once: true });
  }
});
