// Keeps the page's files, so that it works without a network from the second visit on.
const FILES = ["./", "index.html", "classes.json", "model.onnx", "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"];
const CACHE = "charcnn-demo";

self.addEventListener("install", (event) => event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(FILES))));
self.addEventListener("fetch", (event) => {
  // The network first, so that a new model is seen; what was kept where there is none.
  event.respondWith(fetch(event.request).catch(() => caches.match(event.request, { ignoreSearch: true })));
});
