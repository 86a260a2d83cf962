// Light, dark, or as the system has it.

const NAME = "specmesh-theme";
const THEMES = ["system", "light", "dark"];

export function watchTheme(button) {
  const show = (theme) => {
    if (theme === "system") {
      delete document.documentElement.dataset.theme;
    } else {
      document.documentElement.dataset.theme = theme;
    }
    button.textContent = `Theme: ${theme}`;
  };
  let theme = localStorage.getItem(NAME);
  if (!THEMES.includes(theme)) {
    theme = "system";
  }
  show(theme);
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    localStorage.setItem(NAME, theme);
    show(theme);
  });
}
