"""Pages as headless Chromium shows them, at the width of a phone and of a desktop screen."""

import json
import re
import shutil
import subprocess
from urllib.parse import unquote

import pytest

WIDTHS = (390, 1280)

# A window cannot be as narrow as a phone, but a frame can. Folded parts are opened first.
FRAMES = """<!DOCTYPE html><body>
<script>
const found = [];
addEventListener("message", event => {
  found.push(event.data);
  if (found.length < WIDTHS.length) return;
  const place = document.createElement("pre");
  place.id = "found";
  place.textContent = encodeURIComponent(JSON.stringify(found));
  document.body.append(place);
});
for (const width of WIDTHS) {
  const frame = document.createElement("iframe");
  frame.width = width;
  frame.height = 800;
  frame.src = "page.html";
  document.body.append(frame);
}
</script>
"""
LOOK = """<script>
addEventListener("load", async () => {
  document.querySelectorAll("details").forEach(x => { x.open = true; });
  const videos = [...document.querySelectorAll("video")];
  await Promise.all(videos.map(x => x.readyState >= 2 || x.error || new Promise(then => {
    x.addEventListener("loadeddata", then);
    x.addEventListener("error", then);
  })));
  const seen = (x, more) => {
    const box = x.getBoundingClientRect();
    return {left: box.left, right: box.right, height: box.height, ...more};
  };
  parent.postMessage({
    width: innerWidth,
    page_width: document.documentElement.scrollWidth,
    plays_h264: document.createElement("video").canPlayType('video/mp4; codecs="avc1.64001e"'),
    images: [...document.images].map(x => seen(x, {name: x.alt, pixels: x.naturalWidth})),
    videos: videos.map(x => seen(x, {
      name: x.title, pixels: x.videoWidth, ready: x.readyState, seconds: x.duration,
    })),
    tables: [...document.querySelectorAll("table")].map(x => ({
      name: x.parentElement.getAttribute("aria-label"),
      rows: [...x.rows].map(row => [...row.cells].map(cell => cell.innerText)),
    })),
    fetched: performance.getEntriesByType("resource").map(x => x.name),
  }, "*");
});
</script>
"""


def look(path, tmp_path):
    """Return the contents of a page at each of `WIDTHS`; assert that all of it is shown."""
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)
    if chromium is None:
        pytest.skip("there is no Chromium (Debian: apt-get install chromium)")
    folder = tmp_path / "browser"
    folder.mkdir()
    (folder / "page.html").write_text(path.read_text(encoding="utf-8") + LOOK, encoding="utf-8")
    (folder / "frames.html").write_text(FRAMES.replace("WIDTHS", str(list(WIDTHS))))
    finished = subprocess.run(
        [
            chromium,
            "--headless",
            "--no-sandbox",  # root cannot use the sandbox
            "--disable-gpu",
            "--disable-dev-shm-usage",  # /dev/shm is small in containers
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder / 'profile'}",
            "--window-size=1400,1700",
            "--virtual-time-budget=20000",
            "--dump-dom",
            (folder / "frames.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    answer = re.search(r'<pre id="found">([^<]*)</pre>', finished.stdout)
    assert answer is not None, finished.stderr[-2000:]
    found = sorted(json.loads(unquote(answer[1])), key=lambda at: at["width"])
    assert [at["width"] for at in found] == list(WIDTHS)
    for at in found:
        check(at)
    return found


def check(at):
    """Assert that nothing is broken, wider than the page, or fetched from another file."""
    assert at["page_width"] <= at["width"]
    for shown in at["images"] + at["videos"]:
        assert shown["pixels"] > 0, shown
        assert 0 <= shown["left"] < shown["right"] <= at["width"], shown
        assert shown["height"] > 20, shown
    if at["videos"] and not at["plays_h264"]:
        pytest.skip("this Chromium plays no H.264")
    for video in at["videos"]:
        assert video["ready"] >= 1, video
        assert video["seconds"] > 0, video
    assert [name for name in at["fetched"] if not name.startswith("data:")] == []
