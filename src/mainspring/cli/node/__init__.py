"""Commands that run or look after a node and its log.

- `serve`: run a node; `quick_serve`: its command line read without Typer; `process`: a node as a process, `--reload`
- `engine`: the place that holds the log, and the nodes that share it; `log`: look at a log, check, copy and move it
- `top`: a node at a glance; `status`: what needs a person, and figures over time
- `doctor`: is everything sound; `settings`: every setting and where its value came from
- `demo`: a living example; `new`: a project to begin with, from the templates in `project/`
"""
