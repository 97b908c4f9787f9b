// Who looks for --gpus means the option. To the search a leading hyphen means "without", so it reads the field less that.
const field = document.querySelector('[data-md-component="search-query"]')
const { get, set } = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value")
Object.defineProperty(field, "value", { set, get() { return get.call(this).replace(/^\s*-+|(?<=\s)--+/g, "") } })
