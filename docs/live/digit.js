// The first page's digit: drawn with the mouse or a finger, read by the demo's model.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("digit");
  if (!place) return;
});
