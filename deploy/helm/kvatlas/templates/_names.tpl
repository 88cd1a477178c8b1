{{- define "kvatlas.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The labels by which a component's pods are found: they never change. Takes root and name. */}}
{{- define "kvatlas.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .name }}
{{- end -}}

{{- define "kvatlas.labels" -}}
{{ include "kvatlas.selector" . }}
app.kubernetes.io/part-of: kvatlas
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kvatlas.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kvatlas.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The item of the Secret with a key, if that key is asked for. Takes root and item. */}}
{{- define "kvatlas.key" -}}
{{- if .root.Values.keys.secretName -}}
{{- with .item -}}/etc/kvatlas/keys/{{ . }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The InferencePool of the picker. */}}
{{- define "kvatlas.pool" -}}
{{- default (include "kvatlas.fullname" .) .Values.picker.pool.name -}}
{{- end -}}

{{/* The rule of a Role for the engines' pods. */}}
{{- define "kvatlas.seesPods" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch{{ if .Values.engines.podDeletionCost }}, patch{{ end }}]
{{- end -}}
