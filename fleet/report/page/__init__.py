"""The HTML page's own files: template, style and script. Inlined: a page needs no other file."""
