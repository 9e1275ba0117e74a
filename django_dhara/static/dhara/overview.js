/* A page with a part that has data-refresh (seconds) refreshes itself: it fetches its own address and changes only what
   differs (morph.js). While rows of a list are selected nothing moves under them. */
"use strict";

(() => {
    const root = document.querySelector("[data-refresh]");
    if (!root) {
        return;
    }
    const interval = Number(root.dataset.refresh) * 1000;
    const words = { ...root.dataset };
    const button = root.querySelector(".dhara-pause");
    const TIMEOUT = 10_000;
    let timer = 0;
    let loadedAt = Date.now();
    let isFetching = false;
    let isPaused = sessionStorage.getItem("dhara-paused") === "yes";
    let trouble = "";

    function say() {
        const state = trouble || (isPaused ? words.paused : words.live);
        const said = root.querySelector(".dhara-said");
        if (said.textContent !== state) {
            said.textContent = state;
        }
        root.classList.toggle("dhara-stale", Boolean(trouble));
        root.classList.toggle("dhara-is-paused", isPaused && !trouble);
        button.textContent = isPaused ? words.resume : words.pause;
    }

    function age() {
        const seconds = Math.round((Date.now() - loadedAt) / 1000);
        return seconds < 120 ? `${seconds} s` : `${Math.round(seconds / 60)} min`;
    }

    async function refresh() {
        if (isFetching || isSelecting()) {
            return;
        }
        isFetching = true;
        try {
            const response = await fetch(location.href, {
                headers: { Accept: "text/html" }, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT),
            });
            if (response.ok) {
                const page = new DOMParser().parseFromString(await response.text(), "text/html");
                take(page.querySelector("[data-refresh]"));
            } else {
                trouble = words.failed.replace("%s", response.status);
            }
        } catch {
            trouble = words.stale.replace("%s", age());
        }
        isFetching = false;
        say();
    }

    /* A row that came or went would put another one under a mark, or under an action that is being chosen. */
    function isSelecting() {
        return root.querySelector(".action-select:checked, select:focus") !== null;
    }

    function take(fresh) {
        if (!fresh) {
            trouble = words.gone;
            stop();
            return;
        }
        trouble = "";
        loadedAt = Date.now();
        fresh.classList.add(...root.classList);
        if (!isSelecting()) {
            dharaMorph(root, fresh);
        }
    }

    function stop() {
        clearInterval(timer);
        timer = 0;
    }

    function go() {
        stop();
        if (!isPaused && !document.hidden) {
            timer = setInterval(refresh, interval);
        }
    }

    button.addEventListener("click", () => {
        isPaused = !isPaused;
        sessionStorage.setItem("dhara-paused", isPaused ? "yes" : "no");
        say();
        go();
        if (!isPaused) {
            refresh();
        }
    });

    document.addEventListener("visibilitychange", () => {
        go();
        if (!document.hidden && !isPaused && Date.now() - loadedAt > interval) {
            refresh();
        }
    });

    /* What a chart says of the step under the pointer, at once and beside its title. */
    root.addEventListener("pointerover", (event) => {
        const title = event.target.closest?.(".dhara-hit")?.querySelector("title");
        const readout = event.target.closest?.(".dhara-chart")?.querySelector(".dhara-readout");
        if (readout) {
            readout.textContent = title ? title.textContent : "";
        }
    });
    root.addEventListener("pointerout", (event) => {
        const chart = event.target.closest?.(".dhara-chart");
        if (chart && !chart.contains(event.relatedTarget)) {
            chart.querySelector(".dhara-readout").textContent = "";
        }
    });

    button.hidden = false;
    say();
    go();
})();
