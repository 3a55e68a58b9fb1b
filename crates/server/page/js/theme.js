// Sets the chosen theme before anything is drawn. A script of its own, because modules run later.
'use strict';
try {
  const chosen = localStorage.getItem('theme');
  if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
} catch {
  // Without storage the system's theme stays.
}
