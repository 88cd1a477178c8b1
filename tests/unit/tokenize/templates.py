"""Chat templates in the style of public ones, each with what is particular to its family."""

CHATML = """
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

# A system message of its own, tools as JSON, tool calls, thinking switched off by a variable.
WITH_TOOLS = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}
    {%- if loop.first and message.role == 'system' %}
        {%- continue %}
    {%- endif %}
    {%- set ns.last = loop.index0 %}
    {%- if message.role == 'assistant' and message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

# The beginning and end of the text are written by the template; roles must take turns.
TURNS = """
{{- bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'] | trim + ' [/INST]' }}
    {%- else %}
        {%- generation %}
        {{- ' ' + message['content'] + eos_token }}
        {%- endgeneration %}
    {%- endif %}
{%- endfor %}
"""

# The day, and the content as a list of parts.
PARTS = """
{{- bos_token + 'Today is ' + strftime_now('%d %b %Y') + '\n' }}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- set content = message['content'] %}
    {%- if content is string %}
        {{- content }}
    {%- else %}
        {%- for part in content %}
            {%- if part.type == 'text' %}{{ part.text }}{% endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
"""

# Documents for answers out of them.
DOCUMENTS = """
{%- for document in documents or [] %}
{{ loop.index }}. {{ document.title }}: {{ document.text }}
{% endfor -%}
{% for message in messages %}
  {% if message.role == "user" %}
User: {{ message.content }}
  {% else %}
{{ message.role | capitalize }}: {{ message.content }}
  {% endif %}
{% endfor %}
"""

TEMPLATES = {
    "chatml": CHATML,
    "with_tools": WITH_TOOLS,
    "turns": TURNS,
    "parts": PARTS,
    "documents": DOCUMENTS,
}
