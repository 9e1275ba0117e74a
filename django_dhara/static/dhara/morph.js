/* dharaMorph(old, fresh) makes a part of the page equal to another one and changes only what differs, so that nothing
   flickers, and focus, selection, scrolling and open parts stay as they are. A row stays itself when others come or go:
   what had the focus, or was under the pointer, never becomes the button of another row. */
"use strict";

const dharaMorph = (() => {
    /* What scripts and readers have set is theirs. */
    const KEPT = new Set(["open", "hidden"]);
    const OURS = "[role=status].dhara-said, .dhara-pause, .dhara-readout";

    function morph(old, fresh) {
        const focused = document.activeElement;
        change(old, fresh);
        if (focused && focused !== document.activeElement && focused.isConnected) {
            focused.focus({ preventScroll: true }); // its row was moved
        }
    }

    function change(old, fresh) {
        if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || old.id !== fresh.id) {
            old.replaceWith(fresh.cloneNode(true));
            return;
        }
        if (old.nodeType !== Node.ELEMENT_NODE) {
            if (old.nodeValue !== fresh.nodeValue) {
                old.nodeValue = fresh.nodeValue;
            }
            return;
        }
        if (old.matches(OURS) || old.isEqualNode(fresh)) {
            return;
        }
        changeAttributes(old, fresh);
        changeChildren(old, fresh);
    }

    function changeAttributes(old, fresh) {
        for (const { name } of [...old.attributes]) {
            if (!fresh.hasAttribute(name) && !KEPT.has(name)) {
                old.removeAttribute(name);
            }
        }
        for (const { name, value } of fresh.attributes) {
            if (old.getAttribute(name) !== value && !KEPT.has(name)) {
                old.setAttribute(name, value);
            }
        }
    }

    function changeChildren(old, fresh) {
        const wanted = keys(fresh);
        const known = new Map(keys(old).filter(([, key]) => key).map(([node, key]) => [key, node]));
        const staying = new Set(wanted.map(([, key]) => key));
        for (const [key, node] of known) {
            if (!staying.has(key)) {
                node.remove();
                known.delete(key);
            }
        }
        const rows = new Set(known.values());
        let place = old.firstChild;
        for (const [child, key] of wanted) {
            let mine = known.get(key);
            if (mine) {
                while (place && place !== mine && !rows.has(place)) {
                    place = without(place);
                }
            } else if (!key && place && !rows.has(place)) {
                mine = place;
            }
            if (!mine) {
                old.insertBefore(child.cloneNode(true), place);
                continue;
            }
            if (mine === place) {
                place = place.nextSibling;
            } else {
                old.insertBefore(mine, place);
            }
            change(mine, child);
        }
        while (place) {
            place = without(place);
        }
    }

    function without(node) {
        const next = node.nextSibling;
        node.remove();
        return next;
    }

    /* The children, each with what it is known by: its id, of a row the page that it leads to, or which of its kind it
       is; a text is known by its place only. */
    function keys(parent) {
        const seen = new Map();
        return [...parent.childNodes].map((node) => {
            const known = name(node);
            const number = (seen.get(known) || 0) + 1;
            seen.set(known, number);
            return [node, known && `${known} ${number}`];
        });
    }

    function name(node) {
        if (node.nodeType !== Node.ELEMENT_NODE) {
            return "";
        }
        const address = node.matches("tr, li") && node.querySelector("a[href]")?.getAttribute("href");
        return node.id || address || node.nodeName;
    }

    return morph;
})();
