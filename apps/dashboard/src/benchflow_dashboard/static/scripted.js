// Before the first paint: styles may hide what a script of the page will show.
"use strict";

document.documentElement.classList.add("scripted");
